// LARS, layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017, Algorithm 1). Each tensor
// has its own learning rate, computed from the norms of its weights and its gradient. PyTorch has
// no LARS; as in PyTorch's SGD, the learning rate is applied outside of the velocity.
//
//   ratio = trust * |parameter| / (|gradient| * scale + weight_decay * |parameter|)
//           1 if a norm is zero, and for tensors that are not adapted
//   velocity = momentum * velocity + ratio * (gradient * scale + weight_decay * parameter)
//   parameter -= learning_rate * velocity
//
// scale is the clipping factor (kernels/sgd.hpp). No fused multiply-adds are used, so the same
// norms give the same bits on every device.
#pragma once

#include <cmath>
#include <span>

#include "kernels/base/hd.hpp"
#include "kernels/device.hpp"
#include "kernels/sgd.hpp"

namespace dp {

struct LarsStep {
  float learning_rate = 0.1f, momentum = 0.9f, weight_decay = 0.0f;
  double trust = 0.001;    // 0: no adaptation, that is, SGD
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

// Updates one tensor. parameters and velocity are updated in place. All three spans have the same
// size. `squares` is the whole gradient's sum of squares, or null for no clipping. `step`, `norms`
// and `squares` are read when the operation runs, so they must be in memory from
// Device::allocate_host.
void lars_update(Device& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> velocity, const LarsStep* step, const LarsNorms* norms,
                 const double* squares);

}  // namespace dp
