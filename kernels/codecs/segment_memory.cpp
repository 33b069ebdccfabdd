#include "kernels/codecs/segment_memory.hpp"

#include <algorithm>
#include <bit>

#include "kernels/codecs/cpu_driver.hpp"
#include "kernels/codecs/lane_sum.hpp"

namespace dp {
namespace {

// Adds the squares in double, because the square of a float can overflow a float. The order is
// fixed, so the bits are the same every time.
template <class Value>
double squares(std::size_t n, Value value) {
  return tiled_sum<double>(n, [&](std::size_t i) {
    const double x = value(i);
    return x * x;
  });
}

constexpr std::size_t kClearPiece = 32;

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
  void fill(float value, float* values, std::size_t n) const override {
    std::fill_n(values, n, value);
  }
  void add_momentum(const Momentum& factors, float* gradient, float* velocity,
                    std::size_t n) const override {
    const auto [momentum, scale, given, direct] = factors;
    for (std::size_t begin = 0; begin < n; begin += kMomentumPiece) {
      const std::size_t m = std::min(kMomentumPiece, n - begin);
      float* const g = gradient + begin;
      float* const u = velocity + begin;
      if (!is_finite(g, m)) continue;
#pragma omp simd
      for (std::size_t i = 0; i < m; ++i) {
        u[i] = momentum * u[i] + scale * g[i];
        g[i] = given * u[i] + direct * g[i];
      }
    }
  }
  void clear(Where where, const float* at, float* values, std::size_t n) const override {
    if (where == Where::zero) {
#pragma omp simd
      for (std::size_t i = 0; i < n; ++i) values[i] = at[i] == 0.0f ? 0.0f : values[i];
      return;
    }
    // At few bits nearly all of `at` is zero, and the values there are neither read nor written.
    std::size_t i = 0;
    for (; i + kClearPiece <= n; i += kClearPiece) {
      std::uint32_t any = 0;
#pragma omp simd reduction(| : any)
      for (std::size_t k = i; k < i + kClearPiece; ++k) {
        any |= std::bit_cast<std::uint32_t>(at[k]) << 1;
      }
      if (any == 0) continue;
#pragma omp simd
      for (std::size_t k = i; k < i + kClearPiece; ++k) {
        values[k] = at[k] != 0.0f ? 0.0f : values[k];
      }
    }
    for (; i < n; ++i) values[i] = at[i] != 0.0f ? 0.0f : values[i];
  }
  std::size_t sample(const float* values, const float* others, std::size_t n, std::size_t run,
                     std::size_t stride, float* to) const override {
    std::size_t count = 0;
    for (std::size_t begin = 0; begin < n; begin += stride) {
      const std::size_t m = std::min(run, n - begin);
      const float* const v = values + begin;
      float* const out = to + count;
      if (others == nullptr) {
        std::copy_n(v, m, out);
      } else {
        const float* const o = others + begin;
#pragma omp simd
        for (std::size_t i = 0; i < m; ++i) out[i] = v[i] + o[i];
      }
      count += m;
    }
    return count;
  }
  void count_magnitudes(const float* values, const float* others, std::size_t n,
                        std::span<std::int64_t, kMagnitudes> counts) const override {
    for (std::size_t i = 0; i < n; ++i) {
      const float v = others == nullptr ? values[i] : values[i] + others[i];
      const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu;
      if (magnitude < 0x7F800000u) ++counts[magnitude >> kMagnitudeShift];
    }
  }
};

}  // namespace

const SegmentMemory& host_memory() {
  static const HostMemory memory;
  return memory;
}

}  // namespace dp
