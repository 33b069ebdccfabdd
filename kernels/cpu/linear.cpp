#include "kernels/linear.hpp"

#include <Eigen/Core>

#include "kernels/base/error.hpp"
#include "kernels/cpu/device.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixMap = Eigen::Map<Matrix>;
using ConstMatrixMap = Eigen::Map<const Matrix>;

Eigen::Index index(std::size_t value) { return static_cast<Eigen::Index>(value); }

// The N x C matrix of a tensor with one pixel per image.
ConstMatrixMap matrix(const TensorView& t) {
  DP_ASSERT(t.desc.type == DataType::f32 && t.desc.is_nhwc() && t.desc.shape.pixels() == 1, "{}",
            to_string(t.desc));
  return {t.as<const float>(), index(t.desc.shape.n), index(t.desc.shape.c)};
}
MatrixMap mutable_matrix(const TensorView& t) {
  return {t.as<float>(), index(t.desc.shape.n), index(t.desc.shape.c)};
}

}  // namespace

void linear_forward(CpuDevice&, const TensorView& x, const float* weights, const float* bias,
                    const TensorView& y) {
  const ConstMatrixMap w(weights, index(y.desc.shape.c), index(x.desc.shape.c));
  MatrixMap out = mutable_matrix(y);
  out.noalias() = matrix(x) * w.transpose();
  if (bias != nullptr) {
    out.rowwise() += Eigen::Map<const Eigen::RowVectorXf>(bias, index(y.desc.shape.c));
  }
}

void linear_backward_data(CpuDevice&, const TensorView& dy, const float* weights,
                          const TensorView& dx) {
  const ConstMatrixMap w(weights, index(dy.desc.shape.c), index(dx.desc.shape.c));
  mutable_matrix(dx).noalias() = matrix(dy) * w;
}

void linear_backward_weights(CpuDevice&, const TensorView& x, const TensorView& dy,
                             float* weight_gradient, float* bias_gradient) {
  const auto outputs = index(dy.desc.shape.c);
  MatrixMap(weight_gradient, outputs, index(x.desc.shape.c)).noalias() =
      matrix(dy).transpose() * matrix(x);
  if (bias_gradient != nullptr) {
    Eigen::Map<Eigen::RowVectorXf>(bias_gradient, outputs) = matrix(dy).colwise().sum();
  }
}

}  // namespace dp::cpu
