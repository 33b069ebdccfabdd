// Stochastic gradient descent with momentum, as torch.optim.SGD defines it (dampening 0):
//
//   g = gradient * gradient_scale + weight_decay * parameter
//   velocity = momentum * velocity + g            (velocity starts at 0, so the first step is g)
//   parameter -= learning_rate * (nesterov ? g + momentum * velocity : velocity)
//
// No fused multiply-add: the same bits on every device.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/device.hpp"

namespace dp {

struct SgdStep {
  float learning_rate = 0.1f, momentum = 0.9f, weight_decay = 0.0f;
  bool has_nesterov = false;
  float gradient_scale = 1.0f;  // below 1 when the gradient was clipped
};

// parameters, velocity: updated in place; all three of one size.
void sgd_update(Device& device, std::span<float> parameters, std::span<const float> gradients,
                std::span<float> velocity, const SgdStep& step);

// Sum of squares in double, by a fixed tree: the same bits for every number of threads.
[[nodiscard]] double sum_of_squares(Device& device, std::span<const float> values);

}  // namespace dp
