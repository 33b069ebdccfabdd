#include "comm/rate/rate_guard.hpp"

namespace dp {
namespace {

constexpr double kErrorCodesPerOctave = 64.0, kMiddle = 127.0, kMostErrorCode = 254.0;

}  // namespace

RateErrors RateErrors::of(const std::array<double, kRateSites>& over_wanted) {
  RateErrors errors;
  for (const RateSite site : {RateSite::partial, RateSite::total}) {
    const double error = over_wanted[static_cast<std::size_t>(site)];
    if (!(error > 0.0)) continue;
    const double code = std::clamp(kMiddle - std::round(kErrorCodesPerOctave * std::log2(error)),
                                   0.0, kMostErrorCode);
    const unsigned shift = errors.shift(site);
    errors.code_ = static_cast<std::uint16_t>((errors.code_ & ~(0xffu << shift)) |
                                              (static_cast<unsigned>(code) << shift));
  }
  return errors;
}

double RateErrors::over_wanted(RateSite site) const {
  return std::exp2((kMiddle - static_cast<double>(byte(site))) / kErrorCodesPerOctave);
}

void RateErrors::meet(RateErrors other) {
  const unsigned low = std::min(byte(RateSite::partial), other.byte(RateSite::partial));
  const unsigned high = std::min(byte(RateSite::total), other.byte(RateSite::total));
  code_ = static_cast<std::uint16_t>(high << 8 | low);
}

void ResidualGuard::update(bool is_beyond) {
  level_ = std::clamp<std::int64_t>(level_ + (is_beyond ? kUp : -kDown), 0, kMost);
}

}  // namespace dp
