// Operations on gradients, residuals and velocities during an exchange, in the memory of one
// device: the host or a GPU. Every call waits until its work is done. The same input gives the same
// bits every time and on every device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace dp {

class SegmentMemory {
 public:
  virtual ~SegmentMemory() = default;

  // Allocates n zeroed floats in this memory. Throws Error(device) if there is too little memory.
  [[nodiscard]] virtual std::shared_ptr<float> allocate(std::size_t n) const = 0;
  // The sum of squares of values + others, or of values alone if `others` is null.
  [[nodiscard]] virtual double squares_of_sum(const float* values, const float* others,
                                              std::size_t n) const = 0;
  [[nodiscard]] virtual double squares_of_difference(const float* values, const float* others,
                                                     std::size_t n) const = 0;
  // Returns false if a value is NaN or an infinity.
  [[nodiscard]] virtual bool is_finite(const float* values, std::size_t n) const = 0;
  // Copies to host memory.
  virtual void to_host(const float* from, float* to, std::size_t n) const = 0;
  // sums += values
  virtual void add(const float* values, float* sums, std::size_t n) const = 0;
  // values *= factor
  virtual void scale(float factor, float* values, std::size_t n) const = 0;
  virtual void fill(float value, float* values, std::size_t n) const = 0;

  // Momentum before the exchange (comm/topologies/velocity.hpp):
  //     velocity = momentum * velocity + scale * gradient
  //     gradient = given * velocity + direct * gradient
  // Pieces of kMomentumPiece values whose gradient is not finite are left as they are.
  struct Momentum {
    float momentum = 0.0f, scale = 1.0f, given = 1.0f, direct = 0.0f;
  };
  static constexpr std::size_t kMomentumPiece = 4096;  // fits into a core's L1 cache
  virtual void add_momentum(const Momentum& factors, float* gradient, float* velocity,
                            std::size_t n) const = 0;
  // values = 0 where `at` is zero, or where it is not.
  enum class Where { zero, not_zero };
  virtual void clear(Where where, const float* at, float* values, std::size_t n) const = 0;

  // Copies a sample of values + others (others may be null) to host memory: `run` values from each
  // multiple of `stride` on. Returns their number, at most `run` for each.
  virtual std::size_t sample(const float* values, const float* others, std::size_t n,
                             std::size_t run, std::size_t stride, float* to) const = 0;
  // Counts the finite values of values + others (others may be null) by magnitude: counts[m >>
  // kMagnitudeShift] += 1, where m is the bit pattern of the magnitude.
  static constexpr unsigned kMagnitudeShift = 21;  // two bits of the mantissa remain
  static constexpr std::size_t kMagnitudes = std::size_t{1} << (31 - kMagnitudeShift);
  virtual void count_magnitudes(const float* values, const float* others, std::size_t n,
                                std::span<std::int64_t, kMagnitudes> counts) const = 0;
};

// The host's memory. Any thread may use it.
[[nodiscard]] const SegmentMemory& host_memory();

}  // namespace dp
