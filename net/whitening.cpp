#include "net/whitening.hpp"

#include <cmath>

#include <Eigen/Eigenvalues>

#include "kernels/base/error.hpp"

namespace dp::net {

namespace {

using Matrix = Eigen::MatrixXd;

Eigen::Index index(std::size_t value) { return static_cast<Eigen::Index>(value); }

}  // namespace

std::vector<float> whitening_weights(const Parameter& weights, const WhiteningImages& images) {
  const std::size_t K = weights.shape.at(0), C = weights.shape.at(1), R = weights.shape.at(2),
                    S = weights.shape.at(3);
  const std::size_t length = C * R * S;
  const ImageShape& shape = images.shape;
  DP_ASSERT(K == 2 * length && C == shape.channels && images.count > 0 && shape.height >= R &&
                shape.width >= S,
            "{}: {} whitening patches of {}x{}x{} do not fit the images", weights.name, K, C, R, S);

  // Each patch of the image is a column; each row is one position in the patch, in torch's order.
  const std::size_t across = shape.width - S + 1, patches = (shape.height - R + 1) * across;
  Matrix columns(index(length), index(patches)),
      moments = Matrix::Zero(index(length), index(length));
  std::vector<float> image(shape.values());
  for (std::size_t i = 0; i < images.count; ++i) {
    images.read(i, image);
    for (std::size_t row = 0; row < length; ++row) {
      const std::size_t c = row / (R * S), r = row / S % R, s = row % S;
      for (std::size_t p = 0; p < patches; ++p) {
        const std::size_t pixel = (p / across + r) * shape.width + p % across + s;
        columns(index(row), index(p)) = static_cast<double>(image[pixel * C + c]);
      }
    }
    moments.noalias() += columns * columns.transpose();
  }
  moments /= static_cast<double>(images.count * patches);

  const Eigen::SelfAdjointEigenSolver<Matrix> solver(moments);
  std::vector<float> values(K * length);
  for (std::size_t k = 0; k < length; ++k) {
    const Eigen::Index which = index(length - 1 - k);  // Eigen sorts the smallest first
    Eigen::VectorXd vector = solver.eigenvectors().col(which);
    Eigen::Index largest = 0;
    vector.cwiseAbs().maxCoeff(&largest);
    if (vector(largest) < 0) vector = -vector;
    vector /= std::sqrt(solver.eigenvalues()(which) + images.epsilon);
    for (std::size_t j = 0; j < length; ++j) {
      const auto value = static_cast<float>(vector(index(j)));
      values[k * length + j] = value;
      values[(length + k) * length + j] = -value;
    }
  }
  return values;
}

}  // namespace dp::net
