// The value of --compress: a codec, or "auto", which is ecq with a rate that follows the link.
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
  // Adam divides lumps by their own size (adam_velocity.hpp).
  static constexpr double kLeastForAdam = 2.0;

  double least_bits = 0.1, most_bits = kMostOfGradients;
  bool allows_dense = true;  // where the link carries such a form; not with a most that is given

  // At a place of the run, as a share of it (below 0: not known). Where the user gave no most, it
  // is at least what a run with the usual most in the mean would plan there (planned_bits).
  [[nodiscard]] RateLimits at(double progress) const;

  [[nodiscard]] double limited(double bits) const {
    return std::clamp(bits, least_bits, most_bits);
  }
};

struct CompressChoice {
  std::string text = "none";  // as it was given
  CodecSpec codec = {};
  std::optional<RateLimits> limits = std::nullopt;  // of auto
  bool has_velocity_key = false;                    // auto with velocity=
  bool has_min_key = false;                         // auto with min=

  [[nodiscard]] bool is_auto() const { return limits.has_value(); }
  // The same where velocities can be sent, which auto then does unless velocity= is given.
  [[nodiscard]] CompressChoice with_velocities(bool can_send) const;
  // The same where Adam gets the sums of gradients, of which auto then sends more unless min= is
  // given.
  [[nodiscard]] CompressChoice for_adams_gradients() const;
};

// Reads a codec spec or "auto[:min=BITS,max=BITS,velocity=on|off]". Throws Error(usage).
[[nodiscard]] CompressChoice parse_compress(std::string_view text);

}  // namespace dp
