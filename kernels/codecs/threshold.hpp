// threshold: sends every value with |g + z| >= alpha; the rest accumulates in z, the residual.
//
// This is the low-bandwidth paper's S(g, Z), except that it compares the magnitude of g + z. If the
// sum itself were compared, no negative value would ever be sent. Wire format: sparse.hpp. A
// payload's length depends on the values. It is 4 bytes if no value reaches alpha, and at most n
// floats and one bit for each.
//
// The number of values that reach alpha is not known in advance; planning assumes a twentieth.
//
// Error: |v - decoded| < alpha for every value, so norm(v - decoded) < alpha sqrt(n), whatever v
// is. There is no c < 1 with norm(v - decoded) <= c norm(v), because nothing is sent of a segment
// of small values; c = 1. But no residual ever reaches alpha, so the mean error over t exchanges of
// any input is below alpha/t per value, and feedback cannot diverge. With value=bf16 a value that
// is sent also leaves up to 2^-8 of itself, in bf16's normal range.
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
