#include "comm/rate/compress_choice.hpp"

#include <charconv>
#include <cmath>

#include "comm/rate/rate_plan.hpp"
#include "kernels/base/setting_error.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {
namespace {

constexpr std::size_t kValuesOfFit = 272'474;  // parameters of ResNet-20

double number_in(std::string_view text, std::string_view value, double least, double most) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() ||
      !(number >= least && number <= most)) {
    throw SettingError(
        Setting{"codec"}, text,
        fmt::format("{} must be a number of bits per value from {:g} to {:g}", value, least, most));
  }
  return number;
}

// The range of the bits a value that min= and max= may set.
constexpr double kFewestBits = 0.01, kMostBits = 6.0;

// More than 8 ranks need more bits, in proportion: if the global batch stays the same, each rank
// has fewer images, and its gradient is noisier than the mean.
double bits_for(std::size_t ranks, double bits_of_8) {
  const double factor = std::max(1.0, static_cast<double>(ranks) / 8.0);
  return std::min(kMostBits, factor * bits_of_8);
}

// Sets the codec of `auto` or `fewest`, and the most_bits of `auto`.
void choose_codec(CompressChoice& choice, double bits) {
  const bool sends_own_steps =
      choice.kind == SentKind::velocities || choice.kind == SentKind::adams_steps;
  if (choice.limits) {
    RateLimits& limits = *choice.limits;
    if (limits.allows_dense) {  // no max= was given
      limits.most_bits =
          std::max(limits.least_bits,
                   sends_own_steps ? RateLimits::kMostOfVelocities : RateLimits::kMostOfGradients);
    }
    bits = limits.limited(0.35);
  }
  choice.codec = parse_codec_spec(
      fmt::format("ecq:bits={},velocity={}", bits, sends_own_steps ? "masked" : "off"));
}

void check_name(std::string_view text) {
  if (find_codec(text.substr(0, text.find(':'))) != nullptr) return;
  std::string known;
  for (const CodecInfo& info : codec_list()) known += fmt::format("{}, ", info.name);
  throw SettingError(Setting{"codec"}, fmt::format("{:.60}", text),
                     fmt::format("unknown codec; known: {}auto, fewest", known));
}

void choose_codec(CompressChoice& choice) {
  choose_codec(choice, fewest_bits(choice.kind, kValuesOfFit, 1));
}

}  // namespace

CompressChoice parse_compress(std::string_view text) {
  CompressChoice choice = {.text = std::string(text)};
  if (text == "fewest") {
    choice.is_fewest = true;
    choose_codec(choice);
    return choice;
  }
  if (text.starts_with("fewest:")) {
    throw SettingError(Setting{"codec"}, fmt::format("{:.60}", text),
                       "fewest has no keys, because it chooses the bits itself; to choose the "
                       "bits, use ecq:bits=X");
  }
  if (text != "auto" && !text.starts_with("auto:")) {
    check_name(text);
    choice.codec = parse_codec_spec(text);
    return choice;
  }
  RateLimits& limits = choice.limits.emplace();
  std::string_view keys = text.substr(std::min(text.size(), std::size_t{5}));
  while (!keys.empty()) {
    const std::string_view key = keys.substr(0, keys.find(','));
    keys.remove_prefix(std::min(keys.size(), key.size() + 1));
    if (key.starts_with("min=")) {
      limits.least_bits = number_in(text, key.substr(4), kFewestBits, kMostBits);
      choice.has_min_key = true;
    } else if (key.starts_with("max=")) {
      limits.most_bits = number_in(text, key.substr(4), kFewestBits, kMostBits);
      limits.allows_dense = false;
    } else if (key == "velocity=on" || key == "velocity=off") {
      choice.kind = key == "velocity=on" ? SentKind::velocities : SentKind::gradients;
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
  choose_codec(choice);
  return choice;
}

CompressChoice CompressChoice::with_velocities(bool can_send) const {
  CompressChoice choice = *this;
  if (!can_send || has_velocity_key || !(is_auto() || is_fewest)) return choice;
  choice.kind = SentKind::velocities;
  choose_codec(choice);
  return choice;
}

CompressChoice CompressChoice::for_adam() const {
  CompressChoice choice = *this;
  if (!is_auto() && !is_fewest) return choice;
  choice.kind = kind == SentKind::velocities ? SentKind::adams_steps : SentKind::adams_gradients;
  if (is_auto() && !has_min_key) {
    RateLimits& range = *choice.limits;
    range.least_bits = choice.kind == SentKind::adams_steps ? RateLimits::kLeastOfAdamsSteps
                                                            : RateLimits::kLeastForAdam;
    if (!range.allows_dense) range.least_bits = std::min(range.least_bits, range.most_bits);
  }
  choose_codec(choice);
  return choice;
}

CompressChoice CompressChoice::for_network(std::size_t values, std::size_t ranks) const {
  CompressChoice choice = *this;
  if (is_fewest) {
    choose_codec(choice, fewest_bits(kind, values, ranks));
  } else if (is_auto() && !has_min_key && kind != SentKind::adams_gradients) {
    double& least = choice.limits->least_bits;
    least = bits_for(ranks, least);
    if (!choice.limits->allows_dense) least = std::min(least, choice.limits->most_bits);
    choose_codec(choice);
  }
  return choice;
}

double fewest_bits(SentKind kind, std::size_t values, std::size_t ranks) {
  const auto rounded = [](double bits) { return std::round(bits * 1e4) / 1e4; };
  // The fit goes through two measured points: ResNet-20 keeps fp32's loss with 0.1 bits a value,
  // and ResNet-18 (11.2 million values) with 0.03 bits.
  constexpr double kOfResNet18 = 0.03, kOfResNet20 = 0.1, kExponent = 0.324;
  switch (kind) {
    case SentKind::velocities: {
      const double size = static_cast<double>(std::max<std::size_t>(values, 1)) / kValuesOfFit;
      return rounded(bits_for(
          ranks, std::clamp(kOfResNet20 * std::pow(size, -kExponent), kOfResNet18, kOfResNet20)));
    }
    case SentKind::adams_gradients:
      return RateLimits::kLeastForAdam;
    case SentKind::adams_steps:
      return rounded(bits_for(ranks, RateLimits::kLeastOfAdamsSteps));
    case SentKind::gradients:
      break;
  }
  return rounded(bits_for(ranks, 0.35));
}

RateLimits RateLimits::at(double progress) const {
  RateLimits limits = *this;
  if (allows_dense) limits.most_bits = std::max(most_bits, planned_bits(most_bits, progress));
  return limits;
}

}  // namespace dp
