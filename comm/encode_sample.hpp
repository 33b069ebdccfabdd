// What encoders drop, looked at in a few encodes: telemetry of one bucket on one rank.
//
// Error: of one encode a step, another one each step, the squares of what was dropped and of what
// was to be encoded.
//
// Saturation: of one encode after measure_saturation(), at most 16,384 values of it. A value is
// saturated where it was sent as the largest magnitude of its block (of the segment, for codecs
// without blocks) and is larger than that by more than 2^-7 of it: more than rounding did. So it
// says how much of the gradient lies beyond the scale that a codec chose: nothing for scales that
// are a block's largest value (q8) and for values sent as they are (topk), the tail for those that
// minimise the error (q2, ternary, sign).
//
// Works on the memory of the codec. Nothing is allocated after construction.
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
    std::uint64_t values = 0;  // looked at for saturation
    std::uint64_t saturated = 0;

    Sums& operator+=(const Sums& more);
  };

  // Segments have up to `longest` floats. A lossless codec has nothing to be looked at.
  EncodeSample(const Codec& codec, std::size_t encodes_per_step, std::size_t longest);

  // At the next encode that is looked at.
  void measure_saturation() { wants_saturation_ = true; }
  void begin_step(std::uint64_t step);
  // To be asked once for every encode: whether it is looked at.
  [[nodiscard]] bool is_next();
  // Around the encode that is: `residual` is null where there is none.
  void before(std::span<const float> sum, const float* residual);
  void after(std::span<const float> sum, const float* residual, std::span<const std::byte> payload,
             Sums& sums);

 private:
  void look_at_values(std::span<const float> sum, const float* residual, Sums& sums);

  const Codec& codec_;
  std::size_t encodes_per_step_, encode_ = 0, chosen_ = 0;
  bool wants_saturation_ = false;
  double value_squares_ = 0.0;
  std::shared_ptr<float> decoded_;          // a segment, in the codec's memory
  std::vector<float> values_, their_rest_;  // of it, on the host: as decoded, and what was dropped
};

// How many of the values decoded + rest are saturated; blocks of 1 mean that there are none.
[[nodiscard]] std::size_t count_saturated(std::span<const float> decoded,
                                          std::span<const float> rest, std::size_t block);

}  // namespace dp
