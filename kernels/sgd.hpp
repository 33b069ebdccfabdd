// Stochastic gradient descent with momentum, as torch.optim.SGD defines it (dampening 0):
//
//   g = gradient * scale + weight_decay * parameter
//   scale = clip_norm / norm if the gradient's norm is known and larger than clip_norm, else 1
//   velocity = momentum * velocity + g            (velocity starts at 0, so it is g at first)
//   parameter -= learning_rate * (nesterov ? g + momentum * velocity : velocity)
//
// With momentum 0 the velocity would equal g, so it is neither read nor written.
//
// No fused multiply-adds are used, so every device computes the same bits.
#pragma once

#include <cmath>
#include <span>

#include "kernels/base/hd.hpp"
#include "kernels/device.hpp"

namespace dp {

struct SgdStep {
  float learning_rate = 0.1f, momentum = 0.9f, weight_decay = 0.0f;
  bool has_nesterov = false;
  double clip_norm = 0.0;  // 0: no clipping
};

// The clipping factor of a gradient whose sum of squares is given.
DP_HD inline float clip_scale(double clip_norm, double squares) {
  if (clip_norm <= 0.0) return 1.0f;
  const double norm = std::sqrt(squares);
  return norm > clip_norm ? static_cast<float>(clip_norm / norm) : 1.0f;
}

// parameters and velocity are updated in place. All three spans have the same size. `squares` is
// the gradient's sum of squares, or null for no clipping. `step` and `squares` are read when the
// operation runs, so both must be in memory from Device::allocate_host. A recording can thus be
// replayed with other values.
void sgd_update(Device& device, std::span<float> parameters, std::span<const float> gradients,
                std::span<float> velocity, const SgdStep* step, const double* squares);

// *sum (from Device::allocate_host) = the sum of squares in double, added in a fixed tree, so that
// the bits do not depend on the number of threads.
void sum_of_squares(Device& device, std::span<const float> values, double* sum);

}  // namespace dp
