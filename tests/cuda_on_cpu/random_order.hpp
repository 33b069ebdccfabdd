// Reproducible choices of the emulator: a small generator, and orders of 0 .. count-1 that cost no
// memory.
#pragma once

#include <cstdint>
#include <numeric>

namespace dp::cuda_on_cpu {

// SplitMix64, Steele et al. 2014.
class Choices {
 public:
  explicit Choices(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In [0, count), count >= 1.
  std::uint64_t below(std::uint64_t count) { return next() % count; }

 private:
  std::uint64_t state_;
};

// i -> (factor i + shift) mod count: a permutation, because factor and count are coprime. count is
// below 2^33. Every fourth order is forwards and every fourth backwards, which reveals errors
// between neighbours.
class RandomOrder {
 public:
  RandomOrder() = default;
  RandomOrder(std::uint64_t count, Choices& choices) : count_(count) {
    const std::uint64_t kind = choices.below(4);
    if (kind == 0 || count < 3) return;
    if (kind == 1) {
      factor_ = shift_ = count - 1;
      return;
    }
    shift_ = choices.below(count);
    do {
      factor_ = 1 + choices.below(count < (1u << 31) ? count - 1 : 1u << 30);
    } while (std::gcd(factor_, count) != 1);
  }
  [[nodiscard]] std::uint64_t operator()(std::uint64_t i) const {
    return (factor_ * i + shift_) % count_;
  }

 private:
  std::uint64_t count_ = 1, factor_ = 1, shift_ = 0;
};

}  // namespace dp::cuda_on_cpu
