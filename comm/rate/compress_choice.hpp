// The value of --compress: a codec; "auto", which is ecq with as many bits a value as the link
// carries; or "fewest", which is ecq with the fewest bits a value that are expected to keep fp32's
// loss.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/codecs/codec_spec.hpp"

namespace dp {

// The range of bits a value that `auto` may send. Fewer bits than least_bits would raise the loss,
// and more than most_bits would hardly lower it. Velocities need fewer bits than gradients
// (experiments/studies/velocity.md).
struct RateLimits {
  static constexpr double kMostOfGradients = 1.0, kMostOfVelocities = 0.4;
  // Few bits deliver a parameter's gradient in rare lumps, which Adam divides by their own size
  // (adam_velocity.hpp). Gradients for Adam therefore need many bits. Sending Adam's steps with 0.1
  // bits raised the loss of a GPT of 0.8 million parameters by 2 %; with 0.35 bits it did not.
  static constexpr double kLeastForAdam = 2.0, kLeastOfAdamsSteps = 0.35;

  double least_bits = 0.1, most_bits = kMostOfGradients;
  bool allows_dense = true;  // DenseForm's forms, too; false if the user gave max=

  // The limits at `progress`, the fraction of the run so far (below 0: not known). A run begins
  // with more bits than it ends with, since error feedback delivers values late, and a short run
  // would end before it has delivered them. Therefore most_bits is higher at the beginning, as in a
  // plan with the mean most_bits (planned_bits), unless the user gave max=.
  [[nodiscard]] RateLimits at(double progress) const;

  [[nodiscard]] double limited(double bits) const {
    return std::clamp(bits, least_bits, most_bits);
  }
};

// The kind of the exchanged values. The bits of `fewest` and the least_bits of `auto` depend on it.
enum class SentKind { gradients, velocities, adams_gradients, adams_steps };

// The fewest bits a value, in the mean of a run, that are expected to keep fp32's loss. Large
// models need fewer bits, and more than 8 ranks need more. Fitted to trainings of ResNet-20 and
// ResNet-18 (experiments/studies/fewest.md).
[[nodiscard]] double fewest_bits(SentKind kind, std::size_t values, std::size_t ranks);

struct CompressChoice {
  std::string text = "none";  // as the user gave it
  CodecSpec codec = {};
  std::optional<RateLimits> limits = std::nullopt;  // of `auto`
  bool has_velocity_key = false;                    // `auto` was given with velocity=
  bool has_min_key = false;                         // `auto` was given with min=
  bool is_fewest = false;
  SentKind kind = SentKind::gradients;  // of `auto` and `fewest`

  [[nodiscard]] bool is_auto() const { return limits.has_value(); }
  // Adapts this choice to a run. If the run can send velocities, `auto` and `fewest` send
  // velocities, unless velocity= is given.
  [[nodiscard]] CompressChoice with_velocities(bool can_send) const;
  // Adapts this choice to a run with Adam: `auto` sends more bits, unless min= is given.
  [[nodiscard]] CompressChoice for_adam() const;
  // Adapts this choice to a model of `values` parameters: sets the bits of `fewest`, and the
  // least_bits of `auto` unless min= is given.
  [[nodiscard]] CompressChoice for_network(std::size_t values, std::size_t ranks) const;
};

// Reads a codec spec, "fewest" or "auto[:min=BITS,max=BITS,velocity=on|off]". Throws Error(usage).
[[nodiscard]] CompressChoice parse_compress(std::string_view text);

}  // namespace dp
