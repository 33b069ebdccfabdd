#include "kernels/cuda/cuda_check.hpp"

#include "kernels/base/setting_error.hpp"

namespace dp::cuda {

void throw_cuda_error(cudaError_t code, const char* expression, const char* file, int line) {
  static_cast<void>(cudaGetLastError());  // the next check would report it again
  switch (code) {
    case cudaErrorMemoryAllocation:
      throw OutOfMemory(
          fmt::format("out of memory on the GPU ({}): try a smaller batch or model", expression));
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
      throw SettingError(Setting{"device"}, "cuda",
                         "this program was not built for this GPU; build it with "
                         "CMAKE_CUDA_ARCHITECTURES set to this GPU's compute capability; allowed: "
                         "cpu",
                         ErrorKind::device);
    case cudaErrorUnsupportedPtxVersion:
      throw SettingError(Setting{"device"}, "cuda",
                         "the NVIDIA driver is older than the CUDA toolkit that this program was "
                         "built with; update the driver; allowed: cpu",
                         ErrorKind::device);
    case cudaErrorDevicesUnavailable:
      throw SettingError(
          Setting{"device"}, "cuda",
          "the GPU is in use by another process, and its compute mode allows one process "
          "at a time or none (nvidia-smi -q -d COMPUTE); start one rank per GPU, "
          "start NVIDIA's MPS (nvidia-cuda-mps-control -d), or have an administrator "
          "set the mode (nvidia-smi -c DEFAULT); allowed: cpu",
          ErrorKind::device);
    default:
      throw_error(ErrorKind::device, "CUDA: {}: {} ({}, {}:{})", expression,
                  cudaGetErrorString(code), cudaGetErrorName(code), file, line);
  }
}

void require(bool holds, const char* text) {
  if (!holds) {
    throw_error(ErrorKind::internal, "{} (a bug in dptrain: please report it)", text);
  }
}

}  // namespace dp::cuda
