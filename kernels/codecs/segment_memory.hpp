// What an exchange does with gradients and residuals apart from encoding them (sums, copies), on
// the memory where they lie: the host's, or a GPU's. Every call has finished when it returns. The
// same input gives the same bits every time; sums on a GPU may differ from those on the host in the
// last bits.
#pragma once

#include <cstddef>
#include <memory>

namespace dp {

class SegmentMemory {
 public:
  virtual ~SegmentMemory() = default;

  // Floats of this memory, zeroed. Error(device) where there is too little.
  [[nodiscard]] virtual std::shared_ptr<float> allocate(std::size_t n) const = 0;
  // The sum of squares of values + others, or of values alone where `others` is null.
  [[nodiscard]] virtual double squares_of_sum(const float* values, const float* others,
                                              std::size_t n) const = 0;
  [[nodiscard]] virtual double squares_of_difference(const float* values, const float* others,
                                                     std::size_t n) const = 0;
  // False where a value is NaN or an infinity.
  [[nodiscard]] virtual bool is_finite(const float* values, std::size_t n) const = 0;
  // Copies to memory of the host.
  virtual void to_host(const float* from, float* to, std::size_t n) const = 0;
  // sums += values
  virtual void add(const float* values, float* sums, std::size_t n) const = 0;
  // values *= factor
  virtual void scale(float factor, float* values, std::size_t n) const = 0;
};

// The host's memory. Any thread may use it.
[[nodiscard]] const SegmentMemory& host_memory();

}  // namespace dp
