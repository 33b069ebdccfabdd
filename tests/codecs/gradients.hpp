// Values with the heavy tails of real gradients, for tests: normal deviates whose scale is itself
// drawn, once for every 16 values in a row, from a log-normal distribution. Their kurtosis is near
// 100 (that of a ResNet-20's gradients on CIFAR-10 is 60-145); within blocks of 2048 the largest
// magnitude is some 20 times the mean one.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/base/random.hpp"

namespace dp::test {

inline std::vector<float> heavy_tailed_gradient(std::size_t n, std::uint64_t seed) {
  const CounterRng values(seed, RandomStream::test, 1), scales(seed, RandomStream::test, 2);
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) {
    // The kurtosis of a normal deviate times exp(s z) is 3 exp(4 s^2).
    const double scale = 1e-3 * std::exp(1.05 * normal(scales, i / 16));
    v[i] = static_cast<float>(scale * normal(values, i));
  }
  return v;
}

}  // namespace dp::test
