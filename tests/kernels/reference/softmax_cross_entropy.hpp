// The readable twin of kernels/softmax_cross_entropy.hpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace dp::reference {

// Returns the sum of the samples' losses; d_logits (may be null) = gradient of that / divisor.
template <class T>
T softmax_cross_entropy(std::size_t samples, std::size_t classes, const T* logits,
                        const std::int32_t* labels, T smoothing, T divisor, T* d_logits) {
  T loss = 0;
  for (std::size_t n = 0; n < samples; ++n) {
    const T* row = logits + n * classes;
    T largest = row[0];
    for (std::size_t k = 1; k < classes; ++k) largest = row[k] > largest ? row[k] : largest;
    T total = 0;
    for (std::size_t k = 0; k < classes; ++k) total += std::exp(row[k] - largest);
    for (std::size_t k = 0; k < classes; ++k) {
      const bool is_label = static_cast<std::int64_t>(k) == labels[n];
      const T target = (is_label ? 1 - smoothing : T(0)) + smoothing / static_cast<T>(classes);
      const T log_probability = row[k] - largest - std::log(total);
      loss -= target * log_probability;
      if (d_logits != nullptr) {
        d_logits[n * classes + k] = (std::exp(log_probability) - target) / divisor;
      }
    }
  }
  return loss;
}

}  // namespace dp::reference
