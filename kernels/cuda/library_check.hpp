// Errors of cuDNN and cuBLAS: a failed call throws Error(device) with the expression and the
// library's own text.
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

// cuDNN's message about this thread's last failed call, in one line; may be empty.
[[nodiscard]] std::string last_cudnn_message();

}  // namespace dp::cuda

#define DP_CHECK_CUDNN(expression) ::dp::cuda::check((expression), #expression, __FILE__, __LINE__)
#define DP_CHECK_CUBLAS(expression) ::dp::cuda::check((expression), #expression, __FILE__, __LINE__)
