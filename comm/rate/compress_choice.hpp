// The value of --compress: a codec; "auto", which is ecq with a rate that follows the link; or
// "fewest", which is ecq with the fewest bits that are expected to keep the loss.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/codecs/codec_spec.hpp"

namespace dp {

// The range of bits a value that auto may send. Fewer than least_bits would cost quality; more than
// most_bits hardly help. Velocities need fewer bits than gradients
// (experiments/studies/velocity.md).
struct RateLimits {
  static constexpr double kMostOfGradients = 1.0, kMostOfVelocities = 0.4;
  // Adam divides lumps by their own size (adam_velocity.hpp), so its gradients need many bits.
  // Sending Adam's steps with 0.1 bits raised the loss of a GPT of 0.8 million parameters by 2 %;
  // with 0.35 bits it did not.
  static constexpr double kLeastForAdam = 2.0, kLeastOfAdamsSteps = 0.35;

  double least_bits = 0.1, most_bits = kMostOfGradients;
  bool allows_dense = true;  // if the link carries them; false if the user gave max=

  // The limits at `progress`, the fraction of the run so far (below 0: not known). Unless the user
  // gave max=, most_bits rises to the bits that a run with a mean of most_bits would plan there
  // (planned_bits): a run begins with more bits, since error feedback delivers late and a short run
  // ends before that.
  [[nodiscard]] RateLimits at(double progress) const;

  [[nodiscard]] double limited(double bits) const {
    return std::clamp(bits, least_bits, most_bits);
  }
};

// The kind of the exchanged values. The bits of fewest and auto's least_bits depend on it.
enum class SentKind { gradients, velocities, adams_gradients, adams_steps };

// The fewest bits a value, in the mean of a run, that are expected to keep fp32's loss: fewer for
// large models, more from 8 ranks on. Fitted to trainings of ResNet-20 and ResNet-18
// (experiments/studies/fewest.md).
[[nodiscard]] double fewest_bits(SentKind kind, std::size_t values, std::size_t ranks);

struct CompressChoice {
  std::string text = "none";  // as it was given
  CodecSpec codec = {};
  std::optional<RateLimits> limits = std::nullopt;  // of auto
  bool has_velocity_key = false;                    // auto with velocity=
  bool has_min_key = false;                         // auto with min=
  bool is_fewest = false;
  SentKind kind = SentKind::gradients;  // of auto and fewest

  [[nodiscard]] bool is_auto() const { return limits.has_value(); }
  // This choice for a run that can or cannot send velocities. If it can, auto and fewest do, unless
  // velocity= is given.
  [[nodiscard]] CompressChoice with_velocities(bool can_send) const;
  // This choice for a run in which Adam receives sums of gradients. auto then sends more bits,
  // unless min= is given.
  [[nodiscard]] CompressChoice for_adam() const;
  // This choice for a model of `values` parameters: sets the bits of fewest, and auto's least_bits
  // unless min= is given.
  [[nodiscard]] CompressChoice for_network(std::size_t values, std::size_t ranks) const;
};

// Reads a codec spec, "fewest" or "auto[:min=BITS,max=BITS,velocity=on|off]". Throws Error(usage).
[[nodiscard]] CompressChoice parse_compress(std::string_view text);

}  // namespace dp
