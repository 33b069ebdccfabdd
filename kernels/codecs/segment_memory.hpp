// Sums and copies of gradients and residuals during an exchange, in the memory of one device: the
// host or a GPU. Every call waits until its work is done. The same input gives the same bits every
// time; sums on a GPU may differ from sums on the host in the last bits.
#pragma once

#include <cstddef>
#include <memory>

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
};

// The host's memory. Any thread may use it.
[[nodiscard]] const SegmentMemory& host_memory();

}  // namespace dp
