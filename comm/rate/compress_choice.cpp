#include "comm/rate/compress_choice.hpp"

#include <charconv>

#include "comm/rate/rate_plan.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

double number_in(std::string_view text, std::string_view value, double least, double most) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() ||
      !(number >= least && number <= most)) {
    throw SettingError(
        Setting{"codec"}, text,
        fmt::format("{} must be a number of bits a value from {:g} to {:g}", value, least, most));
  }
  return number;
}

// auto sends velocities or gradients.
void send_velocities(CompressChoice& choice, bool sends_velocities) {
  RateLimits& limits = *choice.limits;
  if (limits.allows_dense) {  // no max= was given
    limits.most_bits = std::max(limits.least_bits, sends_velocities ? RateLimits::kMostOfVelocities
                                                                    : RateLimits::kMostOfGradients);
  }
  choice.codec = parse_codec_spec(fmt::format("ecq:bits={},velocity={}", limits.limited(0.35),
                                              sends_velocities ? "masked" : "off"));
}

}  // namespace

CompressChoice parse_compress(std::string_view text) {
  constexpr double kLeast = 0.01, kMost = 6.0;
  CompressChoice choice = {.text = std::string(text)};
  if (text != "auto" && !text.starts_with("auto:")) {
    choice.codec = parse_codec_spec(text);
    return choice;
  }
  RateLimits& limits = choice.limits.emplace();
  bool sends_velocities = false;
  std::string_view keys = text.substr(std::min(text.size(), std::size_t{5}));
  while (!keys.empty()) {
    const std::string_view key = keys.substr(0, keys.find(','));
    keys.remove_prefix(std::min(keys.size(), key.size() + 1));
    if (key.starts_with("min=")) {
      limits.least_bits = number_in(text, key.substr(4), kLeast, kMost);
      choice.has_min_key = true;
    } else if (key.starts_with("max=")) {
      limits.most_bits = number_in(text, key.substr(4), kLeast, kMost);
      limits.allows_dense = false;
    } else if (key == "velocity=on" || key == "velocity=off") {
      sends_velocities = key == "velocity=on";
      choice.has_velocity_key = true;
    } else {
      throw SettingError(
          Setting{"codec"}, text,
          fmt::format("{} is not a key of auto; allowed: min=, max=, velocity=on|off", key));
    }
  }
  if (!limits.allows_dense && limits.least_bits > limits.most_bits) {
    throw SettingError(Setting{"codec"}, text, "min= must not be above max=");
  }
  send_velocities(choice, sends_velocities);
  return choice;
}

CompressChoice CompressChoice::for_adams_gradients() const {
  CompressChoice choice = *this;
  if (!is_auto() || has_min_key || !codec.has_choice("velocity", "off")) return choice;
  double& least = choice.limits->least_bits;
  least = choice.limits->allows_dense
              ? RateLimits::kLeastForAdam
              : std::min(RateLimits::kLeastForAdam, choice.limits->most_bits);
  send_velocities(choice, false);
  return choice;
}

CompressChoice CompressChoice::with_velocities(bool can_send) const {
  CompressChoice choice = *this;
  if (is_auto() && !has_velocity_key && can_send) send_velocities(choice, true);
  return choice;
}

RateLimits RateLimits::at(double progress) const {
  RateLimits limits = *this;
  if (allows_dense) limits.most_bits = std::max(most_bits, planned_bits(most_bits, progress));
  return limits;
}

}  // namespace dp
