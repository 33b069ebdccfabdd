// Samples the error of a bucket's encoders on one rank: telemetry.
//
// Error: one encode per step is examined, a different one in each step. It gives the sum of squares
// of the dropped part and of the values to encode.
//
// Residual: in every second round of these encodes it also sums the squares of the gradient, of the
// delivered part of gradient + residual, and of the new residual. If the delivered parts of
// different steps are independent, residual / delivered is the mean number of steps for which a
// residual waits (its *age*).
//
// Saturation: in one encode after measure_saturation(), it counts saturated values among at most
// 16,384. A value is saturated if it was sent as the largest magnitude of its block (of the
// segment, for codecs without blocks) and exceeds that magnitude by more than 2^-7 of it, which is
// more than rounding does. Saturation is the fraction of the gradient beyond the scale that a codec
// chose. It is zero when the scale is a block's largest value (q8) and when values are sent as they
// are (topk). For scales that minimise the error (q2, ternary, sign) it is the tail of the
// distribution.
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
    // norm(residual) / norm(gradient), and the residual's age in steps; NaN if nothing was
    // measured.
    [[nodiscard]] double residual_growth() const;
    [[nodiscard]] double residual_age() const;
  };

  // Segments have up to `longest` floats. A lossless codec is not sampled.
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
  std::vector<float> values_, their_rest_;  // on the host: as decoded, and the dropped part
};

// The number of saturated values among decoded + rest. `block` is 1 for a codec without blocks.
[[nodiscard]] std::size_t count_saturated(std::span<const float> decoded,
                                          std::span<const float> rest, std::size_t block);

}  // namespace dp
