// Errors of CUDA and its libraries. Usable from .cu files, which cannot include fmt.
#pragma once

#include <cuda_runtime_api.h>

namespace dp::cuda {

// Throws Error(device) "CUDA: EXPRESSION: CUDA's error text (file:line)". Out of memory, a missing
// driver and a missing kernel image have their own messages. Clears CUDA's record of the error.
[[noreturn]] void throw_cuda_error(cudaError_t code, const char* expression, const char* file,
                                   int line);

inline void check(cudaError_t code, const char* expression, const char* file, int line) {
  if (code != cudaSuccess) throw_cuda_error(code, expression, file, line);
}

// Throws Error(internal) with the text if `holds` is false: DP_ASSERT for .cu files.
void require(bool holds, const char* text);

}  // namespace dp::cuda

#define DP_CHECK_CUDA(expression) ::dp::cuda::check((expression), #expression, __FILE__, __LINE__)
