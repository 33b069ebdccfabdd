// The readable twin of kernels/sgd.hpp: one step for every parameter on its own.
#pragma once

#include <cstddef>

#include "kernels/sgd.hpp"

namespace dp::reference {

template <class T>
void sgd_update(std::size_t count, T* parameters, const T* gradients, T* velocity,
                const SgdStep& step, double squares = 0.0) {
  const T rate = step.learning_rate, momentum = step.momentum, decay = step.weight_decay;
  const T scale = clip_scale(step.clip_norm, squares);
  for (std::size_t i = 0; i < count; ++i) {
    const T g = gradients[i] * scale + decay * parameters[i];
    if (momentum == T(0)) {
      parameters[i] -= rate * g;
      continue;
    }
    velocity[i] = momentum * velocity[i] + g;
    parameters[i] -= rate * (step.has_nesterov ? g + momentum * velocity[i] : velocity[i]);
  }
}

}  // namespace dp::reference
