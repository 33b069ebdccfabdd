// Measures what encoders drop, in a few encodes: telemetry of one bucket on one rank.
//
// Error: in one encode per step, a different one in each step, it sums the squares of what was
// dropped and of what was to be encoded.
//
// Residual: in every second round of such encodes, the squares of the gradient, of what was
// delivered of it and its residual, and of the residual that is left. If what steps deliver is
// independent, left / delivered is the mean number of steps for which a residual waits (its age).
//
// Saturation: in one encode after measure_saturation(), it counts saturated values among at most
// 16,384. A value is saturated if it was sent as the largest magnitude of its block (of the
// segment, for codecs without blocks) and exceeds that magnitude by more than 2^-7 of it, which is
// more than rounding does. So saturation says how much of the gradient lies beyond the scale that a
// codec chose. It is zero for scales that are a block's largest value (q8) and for values sent as
// they are (topk). For scales that minimise the error (q2, ternary, sign) it is the tail.
//
// It works on the codec's memory. Nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/codecs/codec.hpp"

namespace dp {

class EncodeSample {
 public:
  static constexpr std::size_t kMostValues = 16384;

  struct Sums {
    double error_squares = 0.0;
    double value_squares = 0.0;
    double gradient_squares = 0.0;
    double delivered_squares = 0.0;
    double waiting_squares = 0.0;
    std::uint64_t values = 0;  // examined for saturation
    std::uint64_t saturated = 0;

    Sums& operator+=(const Sums& more);
    // The norm of the residual over that of the gradient, and its age in steps; NaN where nothing
    // was measured.
    [[nodiscard]] double residual_growth() const;
    [[nodiscard]] double residual_age() const;
  };

  // Segments have up to `longest` floats. With a lossless codec there is nothing to measure.
  EncodeSample(const Codec& codec, std::size_t encodes_per_step, std::size_t longest);

  // Measures saturation in the next encode that is examined.
  void measure_saturation() { wants_saturation_ = true; }
  void begin_step(std::uint64_t step);
  // Whether this encode is examined. Must be called once for every encode.
  [[nodiscard]] bool is_next();
  // Before and after an encode that is examined; `residual` is null if there is none.
  void before(std::span<const float> sum, const float* residual);
  void after(std::span<const float> sum, const float* residual, std::span<const std::byte> payload,
             Sums& sums);

 private:
  void look_at_values(std::span<const float> sum, const float* residual, Sums& sums);

  const Codec& codec_;
  std::size_t encodes_per_step_, encode_ = 0, chosen_ = 0;
  bool wants_saturation_ = false, wants_residual_ = false;
  double value_squares_ = 0.0, gradient_squares_ = 0.0;
  std::shared_ptr<float> decoded_;          // a segment, in the codec's memory
  std::vector<float> values_, their_rest_;  // it on the host: as decoded, and what was dropped
};

// How many of the values decoded + rest are saturated. A block of 1 means that the codec has no
// blocks.
[[nodiscard]] std::size_t count_saturated(std::span<const float> decoded,
                                          std::span<const float> rest, std::size_t block);

}  // namespace dp
