// Linear layers on cuBLAS, which takes matrices as column-major. A row-major M x N matrix is
// therefore the N x M transpose to cuBLAS. The comments on products below use cuBLAS's view.
#include "kernels/linear.hpp"

#include "kernels/base/error.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/library_check.hpp"
#include "kernels/cuda/linear_bias.hpp"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

struct Matrix {
  const float* values;
  bool is_transposed;   // as cuBLAS sees it
  std::size_t leading;  // row length in memory
};

int size(std::size_t value) { return checked_cast<int>(value); }

// result = a * b, summed over `inner`. To cuBLAS, `result` is a dense matrix of rows x columns.
// Overwrites `result`.
void multiply(CudaDevice& device, const Matrix& a, const Matrix& b, std::size_t rows,
              std::size_t columns, std::size_t inner, float* result) {
  if (rows == 0 || columns == 0) return;
  if (inner == 0) {
    device.fill_zero(result, rows * columns * sizeof(float));
    return;
  }
  const auto operation = [](const Matrix& m) {
    return m.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  const float one = 1.0f, zero = 0.0f;
  DP_CHECK_CUBLAS(cublas_api().sgemm(device.libraries().cublas(), operation(a), operation(b),
                                     size(rows), size(columns), size(inner), &one, a.values,
                                     size(a.leading), b.values, size(b.leading), &zero, result,
                                     size(rows)));
}

void check_matrix(const TensorView& t) {
  DP_ASSERT(t.desc.type == DataType::f32 && t.desc.is_nhwc() && t.desc.shape.pixels() == 1, "{}",
            to_string(t.desc));
}

}  // namespace

void linear_forward(CudaDevice& device, const TensorView& x, const float* weights,
                    const float* bias, const TensorView& y) {
  check_matrix(x);
  check_matrix(y);
  const std::size_t n = x.desc.shape.n, c = x.desc.shape.c, k = y.desc.shape.c;
  // transpose(y) (K x N) = weights (K x C) * transpose(x) (C x N)
  multiply(device, {weights, true, c}, {x.as<float>(), false, c}, k, n, c, y.as<float>());
  if (bias != nullptr) add_bias(device.stream(), y.as<float>(), bias, n, k);
}

void linear_backward_data(CudaDevice& device, const TensorView& dy, const float* weights,
                          const TensorView& dx) {
  check_matrix(dy);
  check_matrix(dx);
  const std::size_t n = dx.desc.shape.n, c = dx.desc.shape.c, k = dy.desc.shape.c;
  // transpose(dx) (C x N) = transpose(weights) (C x K) * transpose(dy) (K x N)
  multiply(device, {weights, false, c}, {dy.as<float>(), false, k}, c, n, k, dx.as<float>());
}

void linear_backward_weights(CudaDevice& device, const TensorView& x, const TensorView& dy,
                             float* weight_gradient, float* bias_gradient) {
  check_matrix(x);
  check_matrix(dy);
  const std::size_t n = x.desc.shape.n, c = x.desc.shape.c, k = dy.desc.shape.c;
  // transpose(dw) (C x K) = transpose(x) (C x N) * dy (N x K)
  multiply(device, {x.as<float>(), false, c}, {dy.as<float>(), true, k}, c, k, n, weight_gradient);
  if (bias_gradient != nullptr) {
    sum_columns(device.stream(), dy.as<float>(), n, k, bias_gradient);
  }
}

}  // namespace dp::cuda
