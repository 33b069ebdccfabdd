// threshold: sends every value with |g + z| >= alpha; the rest accumulates in z, the residual.
//
// This is S(g, Z) of the paper that the presets `lowband-*` follow, with one change. That paper
// compares g + z itself with alpha, so it would never send a negative value. Wire format:
// sparse.hpp. A payload's length depends on the values. It is 4 bytes if no value reaches alpha. At
// most it is n floats and n bits.
//
// The number of values that reach alpha is not known in advance; planning assumes a twentieth of
// all values.
//
// Error: |v - decoded| < alpha for every value, so norm(v - decoded) < alpha sqrt(n), whatever v
// is. If all values are small, nothing is sent. No c < 1 therefore satisfies norm(v - decoded) <= c
// norm(v) for all v, and c = 1. But no residual ever reaches alpha, so the mean error over t
// exchanges of any input is below alpha/t per value, and feedback cannot diverge. With value=bf16,
// up to 2^-8 of each value that is sent also stays in the residual (for values in bf16's normal
// range).
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/codecs/sparse.hpp"

namespace dp {

class Threshold final : public SparseCodec {
 public:
  explicit Threshold(const CodecSpec& codec_spec) : SparseCodec(codec_spec) {
    const double alpha = codec_spec.number("alpha");
    // The smallest float that reaches alpha.
    auto least = static_cast<float>(alpha);
    if (static_cast<double>(least) < alpha) {
      least = std::nextafter(least, std::numeric_limits<float>::max());
    }
    least_ = std::max(std::bit_cast<std::uint32_t>(least), smallest_sendable());
  }

  [[nodiscard]] double contraction() const override { return 1.0; }
  [[nodiscard]] double absolute_error() const override { return spec().number("alpha"); }

 protected:
  [[nodiscard]] std::size_t most_sent(std::size_t n) const override { return n; }
  [[nodiscard]] std::size_t expected_sent(std::size_t n) const override {
    return sparse::share_of(n, 0.05);
  }
  [[nodiscard]] sparse::Cut cut(const float*, std::size_t) const override {
    return {.least = least_};
  }
  [[nodiscard]] std::uint32_t least_sent() const override { return least_; }

 private:
  std::uint32_t least_;
};

}  // namespace dp
