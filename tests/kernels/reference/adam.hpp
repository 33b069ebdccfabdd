// The readable twin of kernels/adam.hpp: one update for every parameter on its own.
#pragma once

#include <cmath>
#include <cstddef>

#include "kernels/adam.hpp"
#include "kernels/sgd.hpp"

namespace dp::reference {

template <class T>
void adam_update(std::size_t count, T* parameters, const T* gradients, T* mean, T* square,
                 const AdamSettings& settings, std::uint64_t t, double squares = 0.0) {
  const T rate = settings.learning_rate, decay = settings.weight_decay;
  const T beta1 = settings.beta1, beta2 = settings.beta2, updates = static_cast<T>(t);
  const T scale = clip_scale(settings.clip_norm, squares);
  for (std::size_t i = 0; i < count; ++i) {
    T g = gradients[i] * scale;
    if (settings.is_decoupled) {
      parameters[i] *= 1 - rate * decay;
    } else {
      g += decay * parameters[i];
    }
    mean[i] = beta1 * mean[i] + (1 - beta1) * g;
    square[i] = beta2 * square[i] + (1 - beta2) * g * g;
    const T unbiased_mean = mean[i] / (1 - std::pow(beta1, updates));
    const T unbiased_square = square[i] / (1 - std::pow(beta2, updates));
    parameters[i] -= rate * unbiased_mean / (std::sqrt(unbiased_square) + T(settings.epsilon));
  }
}

}  // namespace dp::reference
