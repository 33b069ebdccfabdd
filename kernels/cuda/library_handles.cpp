// The handles of cuDNN and cuBLAS on a device, and the errors of failed calls. If a library fails
// while little memory is free, the error is reported as out of memory, because the library often
// reports only that its execution has failed.
#include "kernels/base/error.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/libraries.hpp"
#include "kernels/cuda/library_check.hpp"

namespace dp::cuda {

namespace {

// NVIDIA's recommendation for Hopper (4 MiB for other GPUs): a smaller workspace rules out fast
// kernels.
constexpr std::size_t kCublasWorkspaceBytes = 32u << 20;

// Libraries load kernels on first use, some MiB at a time. If that fails, they often report only
// that the execution has failed.
constexpr std::size_t kLittleMemoryBytes = 64u << 20;
bool has_little_memory() {
  std::size_t free = 0, total = 0;
  const bool is_known = cudaMemGetInfo(&free, &total) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  return is_known && free < kLittleMemoryBytes;
}
[[noreturn]] void throw_library_error(bool is_memory, const std::string& message) {
  if (is_memory || has_little_memory()) {
    throw OutOfMemory(
        fmt::format("out of memory on the GPU ({}): try a smaller batch or model", message));
  }
  throw Error(ErrorKind::device, message);
}

}  // namespace

Libraries::Libraries(CudaDevice& device) {
  const CudnnApi& cudnn = cudnn_api();
  const CublasApi& cublas = cublas_api();
  try {
    DP_CHECK_CUDNN(cudnn.create(&cudnn_));
    DP_CHECK_CUDNN(cudnn.set_stream(cudnn_, device.stream()));
    DP_CHECK_CUBLAS(cublas.create(&cublas_));
    // Set the stream first, because setting the stream resets the workspace.
    DP_CHECK_CUBLAS(cublas.set_stream(cublas_, device.stream()));
    cublas_workspace_ = device.allocate(kCublasWorkspaceBytes);
    DP_CHECK_CUBLAS(cublas.set_workspace(cublas_, cublas_workspace_.get(), kCublasWorkspaceBytes));
    DP_CHECK_CUBLAS(cublas.set_atomics_mode(cublas_, CUBLAS_ATOMICS_NOT_ALLOWED));
    set_tf32(device.allows_tf32());
  } catch (...) {
    if (cublas_ != nullptr) static_cast<void>(cublas.destroy(cublas_));
    if (cudnn_ != nullptr) static_cast<void>(cudnn.destroy(cudnn_));
    throw;
  }
}

// The default mode keeps all bits of fp32 operands.
void Libraries::set_tf32(bool rounds) {
  DP_CHECK_CUBLAS(cublas_api().set_math_mode(
      cublas_, rounds ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH));
}

Libraries::~Libraries() {
  static_cast<void>(cublas_api().destroy(cublas_));
  static_cast<void>(cudnn_api().destroy(cudnn_));
}

std::string Libraries::versions() {
  const std::size_t cudnn = cudnn_api().get_version();  // 91900 is 9.19.0
  int cublas[3] = {};
  const libraryPropertyType parts[] = {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL};
  for (int i = 0; i < 3; ++i) {
    DP_CHECK_CUBLAS(cublas_api().get_property(parts[i], &cublas[i]));
  }
  return fmt::format("cuDNN {}.{}.{}, cuBLAS {}.{}.{}", cudnn / 10000, cudnn / 100 % 100,
                     cudnn % 100, cublas[0], cublas[1], cublas[2]);
}

std::string last_cudnn_message() {
  char text[1024] = {};
  cudnn_api().get_last_error_string(text, sizeof text - 1);
  std::string message(text);
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  while (!message.empty() && message.back() == ' ') message.pop_back();
  return message;
}

void throw_cudnn_error(cudnnStatus_t status, const char* expression, const char* file, int line) {
  const std::string note = last_cudnn_message();
  throw_library_error(
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ||
          status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
      fmt::format("cuDNN: {}: {}{}{} ({}:{})", expression, cudnn_api().get_error_string(status),
                  note.empty() ? "" : ": ", note, file, line));
}

void throw_cublas_error(cublasStatus_t status, const char* expression, const char* file, int line) {
  throw_library_error(status == CUBLAS_STATUS_ALLOC_FAILED,
                      fmt::format("cuBLAS: {}: {} ({}:{})", expression,
                                  cublas_api().get_status_string(status), file, line));
}

}  // namespace dp::cuda
