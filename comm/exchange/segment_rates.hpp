// Evens out over time the bytes that the segments of an exchange take.
//
// Error feedback makes bursts: one training step drops values, the next one sends them together
// with its own, both change the weights, and the next gradient undoes a part of the change. At few
// bits a value, training steps that send three to six times the planned bits alternate with nearly
// empty ones, so a slow link is overloaded in some training steps and idle in others. A common step
// size of the quantiser, chosen before the training step, cannot prevent that. But a rank knows the
// values of a segment before it encodes them. It therefore chooses for each segment the step size
// with which the segment takes its usual share of the planned bits,
//
//     target = share * plan           share: the mean of b / plan over the last training steps,
//                                     b: the bits that the common step size would have taken
//
// The share is at least kLeastShare, and the step size is at most a factor of 2 away from the
// common one. Each message carries its step size, so ranks need not agree on it. Shares follow the
// common step size. Averaged over time, each segment therefore gets the bits that the common step
// size would give it ("equal slope", rate_control.hpp).
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
#include "kernels/codecs/segment_memory.hpp"

namespace dp {

// A histogram of a sample's magnitudes in units of a step size. Its bins are sixteenths of an
// octave, from 2^-2 to 2^10 step sizes.
class RelativeMagnitudes {
 public:
  static constexpr int kBinsPerOctave = 16;

  // residual may be null; both are in `memory`. Values that are not finite count as the largest
  // magnitude.
  RelativeMagnitudes(std::span<const float> values, const float* residual, float step,
                     const SegmentMemory& memory = host_memory());
  // The entropy, in bits a value, of the sample when it is rounded to whole multiples of 2^octaves
  // step sizes.
  [[nodiscard]] double bits(double octaves) const;

 private:
  static constexpr int kLeastOctave = -2, kOctaves = 12;
  static constexpr std::size_t kBins = kOctaves * kBinsPerOctave;
  // The number of the bin before the first, as the upper bits of a float.
  static constexpr std::uint32_t kBefore = (127 + kLeastOctave) * kBinsPerOctave - 1;

  // The number of sampled values of at least this many step sizes.
  [[nodiscard]] double count_from(float steps) const;

  std::array<std::uint32_t, kBins + 1> from_ = {};  // values of that bin and all bins above
  std::size_t sampled_ = 0;
};

class SegmentRates {
 public:
  static constexpr double kMostOctaves = 1.0, kLeastShare = 1.0 / 16.0;
  static constexpr double kWeight = 1.0 / 8.0;  // of the last training step in the mean

  explicit SegmentRates(std::size_t segments) : shares_(segments, kUnknown) {}

  struct Plan {
    float step = 0.0f;          // the common step size
    double planned_bits = 0.0;  // a value, in the mean of all segments
    double share_factor = 1.0;  // shares are multiplied by it
  };
  // The step size for a segment's values plus residual (may be null), both in `memory`. For a
  // segment's first encode it is the common step size. Call it once for each encode.
  [[nodiscard]] float step_for(std::size_t segment, std::span<const float> values,
                               const float* residual, const Plan& plan,
                               const SegmentMemory& memory = host_memory());
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
