// LARS, layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017, Algorithm 1). Each tensor
// has a learning rate of its own, which follows from the norms of its weights and its gradient.
// PyTorch has no LARS; as in its SGD the learning rate stands outside of the velocity.
//
//   ratio = trust * |parameter| / (|gradient| * scale + weight_decay * |parameter|)
//           1 where a norm is zero, and for tensors that are not to be adapted
//   velocity = momentum * velocity + ratio * (gradient * scale + weight_decay * parameter)
//   parameter -= learning_rate * velocity
//
// scale is that of clipping (kernels/sgd.hpp). No fused multiply-add: the same norms give the same
// bits on every device.
#pragma once

#include <cmath>
#include <span>

#include "kernels/base/hd.hpp"
#include "kernels/device.hpp"
#include "kernels/sgd.hpp"

namespace dp {

struct LarsStep {
  float learning_rate = 0.1f, momentum = 0.9f, weight_decay = 0.0f;
  double trust = 0.001;    // 0: not adapted, which is SGD
  double clip_norm = 0.0;  // 0: no clipping
};

// The sums of squares of one tensor.
struct LarsNorms {
  double parameters = 0.0, gradients = 0.0;
};

DP_HD inline float lars_ratio(const LarsStep& step, const LarsNorms& norms, float scale) {
  const double weights = std::sqrt(norms.parameters);
  const double gradients = std::sqrt(norms.gradients) * static_cast<double>(scale);
  if (!(step.trust > 0.0) || !(weights > 0.0) || !(gradients > 0.0)) return 1.0f;
  return static_cast<float>(step.trust * weights /
                            (gradients + static_cast<double>(step.weight_decay) * weights));
}

// One tensor. parameters, velocity: updated in place; all three of one size. `step`, `norms` and
// `squares` (the whole gradient's sum of squares; may be null: no clipping) are read when the
// operation runs: they lie in memory from Device::allocate_host.
void lars_update(Device& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> velocity, const LarsStep* step, const LarsNorms* norms,
                 const double* squares);

}  // namespace dp
