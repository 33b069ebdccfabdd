// The fake cuBLAS: one matrix product. The workspace, the stream and the modes of a handle are
// stored and checked, so the result is what a real handle would compute.
#include <array>
#include <cstring>
#include <set>
#include <vector>

#include "tests/cuda_on_cpu/fake_libraries.hpp"
#include "tests/cuda_on_cpu/launch.hpp"

struct cublasContext {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_ALLOWED;
};

namespace dp::cuda_on_cpu {

namespace {

cublasStatus_t get_property(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? 13 : 0;
  return CUBLAS_STATUS_SUCCESS;
}
const char* get_status_string(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "the library was not used as it must be";
}
cublasStatus_t create(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_stream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->workspace = nullptr;  // as the real one does
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_workspace(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  if (workspace == nullptr || bytes == 0) return CUBLAS_STATUS_INVALID_VALUE;
  handle->workspace = workspace;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_math_mode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_atomics_mode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
  handle->atomics = mode;
  return CUBLAS_STATUS_SUCCESS;
}

// Column-major; op(A) is m x k, op(B) k x n.
cublasStatus_t sgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m,
                     int n, int k, const float* alpha, const float* a, int lda, const float* b,
                     int ldb, const float* beta, float* c, int ldc) {
  const int rows_a = op_a == CUBLAS_OP_N ? m : k, rows_b = op_b == CUBLAS_OP_N ? k : n;
  if (m < 0 || n < 0 || k < 0 || lda < rows_a || ldb < rows_b || ldc < m || lda < 1 || ldb < 1 ||
      ldc < 1) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // Without its own workspace, or with atomics, results may differ from run to run.
  if (handle->workspace == nullptr || handle->atomics != CUBLAS_ATOMICS_NOT_ALLOWED) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  const bool is_tf32 = handle->math == CUBLAS_TF32_TENSOR_OP_MATH;
  const float factor = *alpha, old_factor = *beta;  // host memory: read now
  // The real library's choice of kernel depends on all of these.
  using Form = std::array<int, 6>;
  static std::set<Form>& forms = *new std::set<Form>;
  const void* kernel = &*forms.insert({int{op_a}, int{op_b}, m, n, k, is_tf32 ? 1 : 0}).first;
  const auto work = [=] {
    const auto read = [&](const float* values, std::size_t at) {
      return static_cast<double>(is_tf32 ? round_to_tf32(values[at]) : values[at]);
    };
    const auto at = [](int row, int column, int leading) {
      return static_cast<std::size_t>(column) * static_cast<std::size_t>(leading) +
             static_cast<std::size_t>(row);
    };
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < m; ++i) {
        double sum = 0;
        for (int l = 0; l < k; ++l) {
          sum += read(a, op_a == CUBLAS_OP_N ? at(i, l, lda) : at(l, i, lda)) *
                 read(b, op_b == CUBLAS_OP_N ? at(l, j, ldb) : at(j, l, ldb));
        }
        float& result = c[at(i, j, ldc)];
        // A beta of zero does not read what is there.
        const double old = old_factor == 0.0f ? 0.0 : static_cast<double>(old_factor * result);
        result = static_cast<float>(static_cast<double>(factor) * sum + old);
      }
    }
  };
  const cudaError_t code = enqueue(handle->stream, work, kernel);
  return code == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

const cuda::CublasApi& fake_cublas() {
  static const cuda::CublasApi api = {.get_property = get_property,
                                      .get_status_string = get_status_string,
                                      .create = create,
                                      .destroy = destroy,
                                      .set_stream = set_stream,
                                      .set_workspace = set_workspace,
                                      .set_math_mode = set_math_mode,
                                      .set_atomics_mode = set_atomics_mode,
                                      .sgemm = sgemm};
  return api;
}

}  // namespace dp::cuda_on_cpu
