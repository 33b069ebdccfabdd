// Devices, errors, versions, kernels' attributes.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "tests/cuda_on_cpu/api.hpp"
#include "tests/cuda_on_cpu/memory.hpp"

namespace dp::cuda_on_cpu {

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int device_of_thread = 0;
std::atomic<cudaError_t> fault{cudaSuccess};

std::string_view environment_devices() {
  const char* text = std::getenv("DP_CUDA_ON_CPU_DEVICES");
  return text != nullptr ? text : "1";
}

bool is_taken() { return environment_devices() == "taken"; }

int device_count() {
  const std::string_view text = environment_devices();
  return is_old_gpu() || is_taken() ? 1 : std::atoi(text.data());
}

struct ErrorText {
  cudaError_t code;
  const char *name, *text;
};
constexpr std::array kErrorTexts{
    ErrorText{cudaSuccess, "cudaSuccess", "no error"},
    ErrorText{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    ErrorText{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    ErrorText{cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
              "invalid configuration argument"},
    ErrorText{cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
              "CUDA driver version is insufficient for CUDA runtime version"},
    ErrorText{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    ErrorText{cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
              "CUDA-capable device(s) is/are busy or unavailable"},
    ErrorText{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    ErrorText{cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
              "no kernel image is available for execution on the device"},
    ErrorText{cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
              "invalid resource handle"},
    ErrorText{cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
              "an illegal memory access was encountered"},
    ErrorText{cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    ErrorText{cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    ErrorText{cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
              "operation not permitted when stream is capturing"},
    ErrorText{cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
              "operation failed due to a previous error during capture"},
    ErrorText{cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
              "operation would result in a merge of separate capture sequences"},
    ErrorText{cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
              "capture was not ended in the same stream as it began"},
    ErrorText{cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
              "capturing stream has unjoined work"},
    ErrorText{cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
              "dependency created on uncaptured work in another stream"},
    ErrorText{cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
              "operation would make the legacy stream depend on a capturing blocking stream"},
    ErrorText{cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
              "operation not permitted on an event last recorded in a capturing stream"},
    ErrorText{cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
              "attempt to terminate a thread-local capture sequence from another thread"},
};

const ErrorText* find_text(cudaError_t code) {
  const auto* at = std::find_if(kErrorTexts.begin(), kErrorTexts.end(),
                                [&](const ErrorText& each) { return each.code == code; });
  return at != kErrorTexts.end() ? at : nullptr;
}

}  // namespace

cudaError_t note(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}

void set_device_fault(cudaError_t code) { fault = code; }
cudaError_t device_fault() { return fault; }

bool is_old_gpu() { return environment_devices() == "old-gpu"; }

cudaError_t devices_verdict() {
  if (fault != cudaSuccess) return fault;
  const std::string_view text = environment_devices();
  if (text == "no-driver" || text == "old-driver") return cudaErrorInsufficientDriver;
  return device_count() > 0 ? cudaSuccess : cudaErrorNoDevice;
}

int current_device() { return device_of_thread; }

}  // namespace dp::cuda_on_cpu

using namespace dp::cuda_on_cpu;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t verdict = devices_verdict();
  *count = verdict == cudaSuccess ? device_count() : 0;
  return note(verdict);
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t verdict = devices_verdict(); verdict != cudaSuccess) return note(verdict);
  if (device < 0 || device >= device_count()) return note(cudaErrorInvalidDevice);
  if (is_taken()) return note(cudaErrorDevicesUnavailable);
  device_of_thread = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return note(devices_verdict());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t verdict = devices_verdict(); verdict != cudaSuccess) return note(verdict);
  if (device < 0 || device >= device_count()) return note(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "cuda_on_cpu");
  properties->totalGlobalMem = device_bytes();
  properties->major = is_old_gpu() ? 7 : 9;
  properties->minor = is_old_gpu() ? 5 : 0;
  // Few multiprocessors, so that loops over a grid sized by them run more than once.
  properties->multiProcessorCount = 3;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 48 << 10;
  properties->warpSize = 32;
  properties->l2CacheSize = 50 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t code = cudaGetDeviceProperties(&properties, device); code != cudaSuccess) {
    return code;
  }
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      return cudaSuccess;
    case cudaDevAttrComputeMode:
      *value = is_taken() ? cudaComputeModeExclusiveProcess : cudaComputeModeDefault;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      return cudaSuccess;
    default:
      return note(cudaErrorInvalidValue);
  }
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (const cudaError_t verdict = devices_verdict(); verdict != cudaSuccess) return note(verdict);
  *free = free_bytes(current_device());
  *total = device_bytes();
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  const std::string_view text = environment_devices();
  *version = text == "no-driver" ? 0 : text == "old-driver" ? 12040 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t code) {
  const ErrorText* found = find_text(code);
  return found != nullptr ? found->name : "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t code) {
  const ErrorText* found = find_text(code);
  return found != nullptr ? found->text : "unrecognized error code";
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (const cudaError_t verdict = devices_verdict(); verdict != cudaSuccess) return note(verdict);
  Queue& queue = Queue::get();
  const std::lock_guard lock(queue.mutex);
  queue.load_by_launch_locked(kernel);  // it loads what is not there yet
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          std::size_t) {
  *blocks = threads > 0 ? std::max(1, 2048 / threads) : 0;
  return cudaSuccess;
}

}  // extern "C"
