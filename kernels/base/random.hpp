// Random numbers from a counter: value = f(key, counter), with no state to carry, share or save.
//
// Every consumer derives its own key from the run's seed and a stream's name, and counts positions
// (sample index, training step, element). Results therefore do not depend on threads, ranks or
// order of evaluation, and a resumed run needs no generator state. Host and device give the same
// bits.
#pragma once

#include <cstdint>

#include "kernels/base/hd.hpp"

namespace dp {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection on 64 bits that passes
// BigCrush when it is fed a Weyl sequence.
DP_HD constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The use of a stream of random numbers. The numeric values are part of the keys: append new ones
// and never renumber, or a seed would give other random numbers.
enum class RandomStream : std::uint64_t {
  weights = 1,
  permutation = 2,
  augmentation = 3,
  synthetic_image = 4,
  codec = 5,
  test = 6,
  dropout = 7,
  validation = 8,
  nap = 9,
  byte_shares = 10,
};

// A random function of a position. Cheap to copy.
class CounterRng {
 public:
  DP_HD constexpr CounterRng(std::uint64_t seed, RandomStream stream, std::uint64_t a = 0,
                             std::uint64_t b = 0)
      : key_(mix64(mix64(mix64(mix64(seed) ^ static_cast<std::uint64_t>(stream)) ^ a) ^ b)) {}

  // 64 random bits at a position.
  DP_HD constexpr std::uint64_t bits(std::uint64_t position) const {
    return mix64(key_ ^ mix64(position));
  }
  // Uniform in [0, 1): 53 random bits.
  DP_HD constexpr double uniform(std::uint64_t position) const {
    return static_cast<double>(bits(position) >> 11) * 0x1.0p-53;
  }
  // Uniform integer in [0, n). n is 1 to 2^32: beyond that the products overflow. The bias is below
  // n / 2^64.
  DP_HD constexpr std::uint64_t below(std::uint64_t n, std::uint64_t position) const {
    // Multiply-shift on both 32-bit halves, because not every compiler has 128-bit products.
    const std::uint64_t r = bits(position);
    const std::uint64_t high = (r >> 32) * n, low = (r & 0xFFFFFFFFu) * n;
    return (high + (low >> 32)) >> 32;
  }

 private:
  std::uint64_t key_;
};

// Standard normal deviate at a position (Box-Muller, two draws; double, host only).
[[nodiscard]] double normal(const CounterRng& rng, std::uint64_t position);

}  // namespace dp
