// Telemetry: samples the error that a bucket's encoders make on one rank.
//
// Error: one encode per step is examined, a different one in each step. Two sums of squares are
// computed: one of the values to encode, one of the dropped parts of these values.
//
// Residual: the samples go through the bucket's encodes in turn. In every second pass through all
// encodes, three more sums of squares are computed: of the gradient, of the delivered part of
// gradient + residual, and of the new residual. The *age* of a residual is the mean number of
// training steps for which a value waits in the residual. If the delivered parts of different
// training steps are independent, the age is the sum for the new residual divided by the sum for
// the delivered part.
//
// Saturation: in one encode after measure_saturation(), the saturated values among at most 16,384
// values are counted. A value is saturated if it was sent as the largest magnitude of its block (of
// the segment, for codecs without blocks) and exceeds that magnitude by more than one part in 128,
// which is more than rounding can explain. Saturation is the fraction of the gradient beyond the
// scale that a codec chose. It is zero when the scale is a block's largest value (q8) and when
// values are sent as they are (topk). For scales that minimise the error (q2, ternary, sign) it is
// the tail of the distribution.
//
// The values are in the codec's memory. Nothing is allocated after construction.
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
    // norm(residual) / norm(gradient), and the residual's age in training steps. NaN if nothing was
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
  // Call these before and after an encode that is examined; `residual` is null if there is none.
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

// The number of saturated values. The encoded values are the sums decoded + rest. `block` is 1 for
// a codec without blocks.
[[nodiscard]] std::size_t count_saturated(std::span<const float> decoded,
                                          std::span<const float> rest, std::size_t block);

}  // namespace dp
