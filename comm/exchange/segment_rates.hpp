// Evens out over time the bytes that the segments of an exchange take.
//
// Error feedback makes bursts: one step drops values, the next one sends them with its own, the
// weights move by both, and the next gradient takes back a part of the move. At few bits a value,
// steps with three to six times the planned bits alternate with nearly empty ones, so a slow link
// is overloaded in some steps and idle in the others. One quantiser step for a whole training step
// cannot foresee that. But a rank knows the values of a segment before it encodes them, so it gives
// each segment the quantiser step with which the segment takes its usual share of the plan,
//
//     target = share * plan           share: the mean of bits / plan over the last steps,
//                                     with the bits that the common quantiser step would take
//
// at most an octave away from the common one, with a share of at least kLeastShare. Each message
// carries its step, so ranks need not agree on it. Shares follow the bits that one common step
// would take, so in the mean over time segments get what the common step would give them ("equal
// slope", rate_control.hpp).
//
// Bits are estimated from a sample of the values. Nothing is allocated after construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/state.hpp"

namespace dp {

// A histogram of a sample's magnitudes relative to a quantiser step, in sixteenths of an octave
// from 2^-2 to 2^10 steps.
class RelativeMagnitudes {
 public:
  static constexpr int kBinsPerOctave = 16;

  // residual may be null. Values that are not finite count as the largest magnitude.
  RelativeMagnitudes(std::span<const float> values, const float* residual, float step);
  // The entropy, in bits a value, of the sample rounded to whole multiples of 2^octaves steps.
  [[nodiscard]] double bits(double octaves) const;

 private:
  static constexpr int kLeastOctave = -2, kOctaves = 12;
  static constexpr std::size_t kBins = kOctaves * kBinsPerOctave;
  // The number of the bin before the first, as the upper bits of a float.
  static constexpr std::uint32_t kBefore = (127 + kLeastOctave) * kBinsPerOctave - 1;

  // The number of values of at least this many steps.
  [[nodiscard]] double count_from(float steps) const;

  std::array<std::uint32_t, kBins + 1> from_ = {};  // values of that bin and all bins above
  std::size_t sampled_ = 0;
};

class SegmentRates {
 public:
  static constexpr double kMostOctaves = 1.0, kLeastShare = 1.0 / 16.0;
  static constexpr double kWeight = 1.0 / 8.0;  // of the last step in the mean

  explicit SegmentRates(std::size_t segments) : shares_(segments, kUnknown) {}

  struct Plan {
    float step = 0.0f;          // the common one
    double planned_bits = 0.0;  // a value, in the mean of all segments
    double share_factor = 1.0;  // shares are multiplied by it
  };
  // The quantiser step for a segment's values plus residual (may be null). For a segment's first
  // encode it is the common step. Call it once for each encode.
  [[nodiscard]] float step_for(std::size_t segment, std::span<const float> values,
                               const float* residual, const Plan& plan);
  // Not replicated: the shares are a rank's own.
  void list_state(StateVisitor& visitor, const std::string& prefix) {
    visitor.values(prefix + "shares", std::span<float>(shares_), StateShare::own, StatePlace::host,
                   StateMerge::first);
  }

 private:
  static constexpr float kUnknown = -1.0f;
  std::vector<float> shares_;
};

}  // namespace dp
