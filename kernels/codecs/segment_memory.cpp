#include "kernels/codecs/segment_memory.hpp"

#include <algorithm>

#include "kernels/codecs/cpu_driver.hpp"
#include "kernels/codecs/lane_sum.hpp"

namespace dp {
namespace {

// Adds the squares in double, because the square of a float can overflow a float. The order is
// fixed, so the bits are the same every time.
template <class Value>
double squares(std::size_t n, Value value) {
  return lane_sum<double>(n, [&](std::size_t i) {
    const double x = value(i);
    return x * x;
  });
}

class HostMemory final : public SegmentMemory {
 public:
  [[nodiscard]] std::shared_ptr<float> allocate(std::size_t n) const override {
    return {new float[n](), [](float* p) { delete[] p; }};
  }
  [[nodiscard]] double squares_of_sum(const float* values, const float* others,
                                      std::size_t n) const override {
    if (others == nullptr) {
      return squares(n, [=](std::size_t i) { return values[i]; });
    }
    return squares(n, [=](std::size_t i) { return values[i] + others[i]; });
  }
  [[nodiscard]] double squares_of_difference(const float* values, const float* others,
                                             std::size_t n) const override {
    return squares(n, [=](std::size_t i) { return values[i] - others[i]; });
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
  void scale(float factor, float* values, std::size_t n) const override {
    for (std::size_t i = 0; i < n; ++i) values[i] *= factor;
  }
};

}  // namespace

const SegmentMemory& host_memory() {
  static const HostMemory memory;
  return memory;
}

}  // namespace dp
