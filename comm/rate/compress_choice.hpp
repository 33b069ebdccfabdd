// The value of --compress: a codec; "auto", which is ecq with a rate that follows the link; or
// "fewest", which is ecq with the fewest bits that are expected to keep the loss.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/codecs/codec_spec.hpp"

namespace dp {

// Bits a value. The least are the floor of quality; more than the most hardly help. Velocities
// learn with fewer bits as well as gradients do (experiments/README.md, "ecq and auto"). A run
// begins with more, since feedback delivers late what was dropped, and a short run ends before
// that.
struct RateLimits {
  static constexpr double kMostOfGradients = 1.0, kMostOfVelocities = 0.4;
  // Adam divides lumps by their own size (adam_velocity.hpp), so its gradients need many bits. Its
  // steps at 0.1 bits cost a GPT of 0.8 million parameters 2 % of the loss, and nothing at 0.35.
  static constexpr double kLeastForAdam = 2.0, kLeastOfAdamsSteps = 0.35;

  double least_bits = 0.1, most_bits = kMostOfGradients;
  bool allows_dense = true;  // where the link carries such a form; not with a most that is given

  // At a place of the run, as a share of it (below 0: not known). Where the user gave no most, it
  // is at least what a run with the usual most in the mean would plan there (planned_bits).
  [[nodiscard]] RateLimits at(double progress) const;

  [[nodiscard]] double limited(double bits) const {
    return std::clamp(bits, least_bits, most_bits);
  }
};

// The values that ranks exchange, on which the bits of fewest and the least of auto depend.
enum class SentKind { gradients, velocities, adams_gradients, adams_steps };

// Bits a value, in the mean of a run, that are expected to keep fp32's loss, fitted to trainings of
// ResNet-20 and ResNet-18 (experiments/README.md, "The fewest bits"): fewer in large networks,
// more from 8 ranks on.
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
  // The same where velocities can be sent, which auto and fewest then do unless velocity= is given.
  [[nodiscard]] CompressChoice with_velocities(bool can_send) const;
  // The same where Adam gets the sums of gradients, of which auto then sends more unless min= is
  // given.
  [[nodiscard]] CompressChoice for_adam() const;
  // The same for a network: fewest has its bits, and auto its least unless min= is given.
  [[nodiscard]] CompressChoice for_network(std::size_t values, std::size_t ranks) const;
};

// Reads a codec spec, "fewest" or "auto[:min=BITS,max=BITS,velocity=on|off]". Throws Error(usage).
[[nodiscard]] CompressChoice parse_compress(std::string_view text);

}  // namespace dp
