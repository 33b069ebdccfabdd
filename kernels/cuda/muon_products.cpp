// Muon's matrix products, on cuBLAS, which takes matrices as column-major. To cuBLAS the memory of
// x (rows x columns) is therefore x^T (columns x rows). A and B are symmetric.
#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/library_check.hpp"
#include "kernels/cuda/twins.hpp"
#include "kernels/muon.hpp"

namespace dp::cuda {

namespace {

int blas_size(std::size_t value) { return checked_cast<int>(value); }

}  // namespace

void muon_orthogonalise(CudaDevice& device, std::span<float> values, std::size_t rows,
                        std::size_t columns, std::span<float> workspace) {
  DP_ASSERT(workspace.size() >= muon_workspace(rows, columns), "a workspace of {} floats",
            workspace.size());
  if (values.empty()) return;
  const bool is_tall = rows > columns;
  const std::size_t n = std::min(rows, columns);
  float *a = workspace.data(), *b = a + n * n, *y = b + n * n;
  const auto multiply = [&](cublasOperation_t op_p, const float* p, std::size_t leading_p,
                            cublasOperation_t op_q, const float* q, std::size_t leading_q,
                            std::size_t m, std::size_t count, std::size_t inner, float factor,
                            float old_factor, float* result) {
    DP_CHECK_CUBLAS(cublas_api().sgemm(device.libraries().cublas(), op_p, op_q, blas_size(m),
                                       blas_size(count), blas_size(inner), &factor, p,
                                       blas_size(leading_p), q, blas_size(leading_q), &old_factor,
                                       result, blas_size(m)));
  };
  const auto copy_values = [&](float* to, const float* from, std::size_t count) {
    const TensorDesc desc = TensorDesc::nhwc({count, 1, 1, 1});
    copy(device, TensorView{desc, const_cast<float*>(from)}, TensorView{desc, to});
  };
  float* x = values.data();
  // The iterations bear operands in TF32 (kernels/muon.hpp), which tensor cores multiply about
  // eight times as fast as fp32 units multiply fp32.
  device.libraries().set_tf32(true);
  for (int iteration = 0; iteration < kMuonIterations; ++iteration) {
    // a = x x^T or, for a tall matrix, x^T x. To cuBLAS the operand is x^T.
    multiply(is_tall ? CUBLAS_OP_N : CUBLAS_OP_T, x, columns, is_tall ? CUBLAS_OP_T : CUBLAS_OP_N,
             x, columns, n, n, is_tall ? rows : columns, 1.0f, 0.0f, a);
    copy_values(b, a, n * n);
    multiply(CUBLAS_OP_N, a, n, CUBLAS_OP_N, a, n, n, n, n, kMuonC, kMuonB, b);
    copy_values(y, x, values.size());
    // x^T = a x^T + x^T b or, for a tall matrix, a x^T + b x^T
    if (is_tall) {
      multiply(CUBLAS_OP_N, b, n, CUBLAS_OP_N, y, columns, columns, rows, n, 1.0f, kMuonA, x);
    } else {
      multiply(CUBLAS_OP_N, y, columns, CUBLAS_OP_N, b, n, columns, rows, n, 1.0f, kMuonA, x);
    }
  }
  device.libraries().set_tf32(device.allows_tf32());
}

}  // namespace dp::cuda
