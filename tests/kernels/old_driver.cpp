// A fake libcuda.so.1 of a driver from 2023: it reports CUDA 12.2 and does nothing else.
#include <cstring>

namespace {

int refuse() { return 803; }  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = 12020;
  return 0;
}

// The runtime gets all functions from here.
int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long, void*) {
  using Function = void (*)();
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  const auto give = [&](auto* found) {
    *function = reinterpret_cast<void*>(reinterpret_cast<Function>(found));
    return 0;
  };
  if (is("")) return give(static_cast<Function*>(nullptr));
  if (is("cuInit")) return give(cuInit);
  if (is("cuDriverGetVersion")) return give(cuDriverGetVersion);
  if (is("cuGetProcAddress")) return give(cuGetProcAddress_v2);
  return give(refuse);
}
int cuGetProcAddress(const char* name, void** function, int version, unsigned long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

}  // extern "C"
