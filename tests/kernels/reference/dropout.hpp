// The readable twin of kernels/dropout.hpp, for values in NHWC order.
#pragma once

#include <cstddef>

#include "kernels/dropout.hpp"

namespace dp::reference {

template <class T>
void dropout(const Shape& shape, const T* x, const DropoutRule& rule, const StepPosition& position,
             T* y) {
  const CounterRng rng = dropout_rng(position, rule.stream);
  const std::size_t image = shape.pixels() * shape.c;
  for (std::size_t n = 0; n < shape.n; ++n)
    for (std::size_t i = 0; i < image; ++i) {
      const std::size_t place = position.first_image + n * position.image_stride;
      const bool keeps = rng.uniform(place * image + i) >= rule.probability;
      y[n * image + i] = keeps ? x[n * image + i] / static_cast<T>(1 - rule.probability) : T(0);
    }
}

}  // namespace dp::reference
