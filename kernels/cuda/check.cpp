#include "kernels/cuda/check.hpp"

#include "kernels/base/error.hpp"

namespace dp::cuda {

void throw_cuda_error(cudaError_t code, const char* expression, const char* file, int line) {
  static_cast<void>(cudaGetLastError());  // it would be reported again by the next check
  switch (code) {
    case cudaErrorMemoryAllocation:
      throw OutOfMemory(fmt::format(
          "out of memory on the GPU ({}): try a smaller --batch-size or model", expression));
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
      throw_error(ErrorKind::device,
                  "--device cuda: this program was built for other GPUs than this one; build it "
                  "with CMAKE_CUDA_ARCHITECTURES set to this GPU's compute capability, or use "
                  "--device cpu");
    case cudaErrorUnsupportedPtxVersion:
      throw_error(ErrorKind::device,
                  "--device cuda: the NVIDIA driver is older than the CUDA toolkit that this "
                  "program was built with; update the driver or use --device cpu");
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
