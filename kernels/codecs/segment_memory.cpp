#include "kernels/codecs/segment_memory.hpp"

#include <algorithm>

#include "kernels/codecs/cpu_driver.hpp"

namespace dp {
namespace {

class HostMemory final : public SegmentMemory {
 public:
  [[nodiscard]] std::shared_ptr<float> allocate(std::size_t n) const override {
    return {new float[n](), [](float* p) { delete[] p; }};
  }
  [[nodiscard]] double squares_of_sum(const float* values, const float* others,
                                      std::size_t n) const override {
    double sum = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      const double x = others == nullptr ? values[i] : values[i] + others[i];
      sum += x * x;
    }
    return sum;
  }
  [[nodiscard]] double squares_of_difference(const float* values, const float* others,
                                             std::size_t n) const override {
    double sum = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      const double x = values[i] - others[i];
      sum += x * x;
    }
    return sum;
  }
  [[nodiscard]] bool is_finite(const float* values, std::size_t n) const override {
    return largest_magnitude_bits(values, nullptr, n) < 0x7F800000u;
  }
  void to_host(const float* from, float* to, std::size_t n) const override {
    std::copy_n(from, n, to);
  }
  void add(const float* values, float* sums, std::size_t n) const override {
    for (std::size_t i = 0; i < n; ++i) sums[i] += values[i];
  }
};

}  // namespace

const SegmentMemory& host_memory() {
  static const HostMemory memory;
  return memory;
}

}  // namespace dp
