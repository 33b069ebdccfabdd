// The readable twin of kernels/lars.hpp: one update of one tensor, whose norms it computes itself.
#pragma once

#include <cmath>
#include <cstddef>

#include "kernels/lars.hpp"

namespace dp::reference {

template <class T>
void lars_update(std::size_t count, T* parameters, const T* gradients, T* velocity,
                 const LarsStep& step, double squares = 0.0) {
  const T rate = step.learning_rate, momentum = step.momentum, decay = step.weight_decay;
  const T scale = clip_scale(step.clip_norm, squares);
  T weights = 0, gradient = 0;
  for (std::size_t i = 0; i < count; ++i) {
    weights += parameters[i] * parameters[i];
    gradient += gradients[i] * scale * gradients[i] * scale;
  }
  weights = std::sqrt(weights);
  gradient = std::sqrt(gradient);
  const bool adapts = step.trust > 0 && weights > 0 && gradient > 0;
  const T ratio = adapts ? T(step.trust) * weights / (gradient + decay * weights) : T(1);
  for (std::size_t i = 0; i < count; ++i) {
    velocity[i] = momentum * velocity[i] + ratio * (gradients[i] * scale + decay * parameters[i]);
    parameters[i] -= rate * velocity[i];
  }
}

}  // namespace dp::reference
