// Errors of cuDNN and cuBLAS: each call's status becomes an Error(device) with the expression and
// what the library says about it.
#pragma once

#include "kernels/cuda/libraries.hpp"

namespace dp::cuda {

[[noreturn]] void throw_cudnn_error(cudnnStatus_t status, const char* expression, const char* file,
                                    int line);
[[noreturn]] void throw_cublas_error(cublasStatus_t status, const char* expression,
                                     const char* file, int line);

inline void check(cudnnStatus_t status, const char* expression, const char* file, int line) {
  if (status != CUDNN_STATUS_SUCCESS) throw_cudnn_error(status, expression, file, line);
}
inline void check(cublasStatus_t status, const char* expression, const char* file, int line) {
  if (status != CUBLAS_STATUS_SUCCESS) throw_cublas_error(status, expression, file, line);
}

// What cuDNN noted about its last failed call of this thread, in one line; may be empty.
[[nodiscard]] std::string last_cudnn_message();

}  // namespace dp::cuda

#define DP_CHECK_CUDNN(expression) ::dp::cuda::check((expression), #expression, __FILE__, __LINE__)
#define DP_CHECK_CUBLAS(expression) ::dp::cuda::check((expression), #expression, __FILE__, __LINE__)
