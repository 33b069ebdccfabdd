// The operations of Muon (Jordan et al. 2024), in the form of airbench94_muon.py (Jordan 2024). A
// parameter is a matrix of `rows` output channels. net/optimizers/muon.cpp calls the operations in
// order.
//
//   velocity = momentum * velocity + gradient * scale
//   X = nesterov ? gradient * scale + momentum * velocity : velocity        muon_direction
//   X = X / (|X| + 1e-7)                                                    muon_normalise
//   five times: A = X X^T, X = a X + (b A + c A A) X                        muon_orthogonalise
//   parameter = parameter * factor - learning_rate * X                      muon_apply
//
// (a, b, c) = (3.4445, -4.7750, 2.0315): five iterations bring each singular value of X to between
// about 0.7 and 1.2. factor is sqrt(rows) / |parameter| if the weights are normalised, else 1 -
// learning_rate * weight_decay. scale is the clipping factor (kernels/sgd.hpp).
//
// If a matrix has more rows than columns, A = X^T X and X = a X + X (b A + c A A) are used instead;
// the result is the same.
//
// On a GPU the products of muon_orthogonalise() round their operands to TF32, whatever the
// precision of the layers is. In simulations over matrices of 64x576 to 256x2304, this changed X by
// at most 0.4 % of its norm and no singular value by more than 0.001.
//
// The loops give the same bits on every device. The matrix products do not, because Eigen and
// cuBLAS add in different orders. Therefore all ranks need the same kind of device.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "kernels/base/hd.hpp"
#include "kernels/device.hpp"
#include "kernels/sgd.hpp"

namespace dp {

struct MuonStep {
  float learning_rate = 0.24f, momentum = 0.6f, weight_decay = 0.0f;
  bool has_nesterov = true;
  double clip_norm = 0.0;  // 0: no clipping
};

inline constexpr int kMuonIterations = 5;
inline constexpr float kMuonA = 3.4445f, kMuonB = -4.7750f, kMuonC = 2.0315f;

// 1 / (|X| + 1e-7), given the sum of squares of X.
DP_HD inline float muon_inverse_norm(double squares) {
  return static_cast<float>(1.0 / (std::sqrt(squares) + 1e-7));
}

// The factor by which muon_apply() multiplies the parameter. `squares` is the parameter's sum of
// squares. If it is null or zero, the weights are not normalised.
DP_HD inline float muon_factor(const MuonStep& step, double rows, const double* squares) {
  if (squares != nullptr && *squares > 0.0) {
    return static_cast<float>(std::sqrt(rows) / std::sqrt(*squares));
  }
  return 1.0f - step.learning_rate * step.weight_decay;
}

// Arguments passed as pointers are read when the operation runs, so they must point to memory from
// Device::allocate_host.

// x: output. squares: the sum of squares of the whole gradient, or null for no clipping.
void muon_direction(Device& device, std::span<const float> gradients, std::span<float> velocity,
                    std::span<float> x, const MuonStep* step, const double* squares);
// squares: the sum of squares of x.
void muon_normalise(Device& device, std::span<float> x, const double* squares);
// x: rows x columns, row-major, updated in place. workspace: muon_workspace() floats.
[[nodiscard]] std::size_t muon_workspace(std::size_t rows, std::size_t columns);
void muon_orthogonalise(Device& device, std::span<float> x, std::size_t rows, std::size_t columns,
                        std::span<float> workspace);
// squares: the sum of squares of the parameters, or null if they are not to be normalised.
void muon_apply(Device& device, std::span<float> parameters, std::span<const float> x,
                std::size_t rows, const MuonStep* step, const double* squares);

}  // namespace dp
