// Outline: MagnitudeHistogram estimates entropy and error for any step size of the quantiser from
// counts of magnitudes, and finds step sizes by bisection. RateController computes in whole numbers
// (logarithms of step sizes, debts): start() sets the step sizes from histograms, update() changes
// them after each training step, and follow() adapts them to values that are known before their
// exchange.
#include "comm/rate/rate_control.hpp"

#include <algorithm>
#include <bit>
#include <numbers>
#include <utility>

#include "kernels/codecs/codec_spec.hpp"

namespace dp {
namespace {

constexpr double kCodesPerOctave = 2048.0, kLeastOctave = -12.0;

constexpr std::size_t kMostCode = 127;  // the codec's largest code

constexpr unsigned kBinShift = SegmentMemory::kMagnitudeShift;

// The middle of a bin's magnitudes.
double magnitude_of(std::size_t bin) {
  const auto bits = (static_cast<std::uint32_t>(bin) << kBinShift) | (1u << (kBinShift - 1));
  return static_cast<double>(std::bit_cast<float>(bits));
}

}  // namespace

bool has_rate(const CodecSpec& spec) {
  return std::ranges::any_of(std::array{"bits", "error"}, [&](const char* key) {
    const auto found = spec.settings.find(key);
    return found != spec.settings.end() && found->second > 0.0;
  });
}

RateWish RateWish::of_bits(double bits) {
  const double code = std::floor((std::log2(bits) - kLeastOctave) * kCodesPerOctave);
  if (!(code < kNone)) return {};
  return RateWish(static_cast<std::uint16_t>(std::max(code, 0.0)));
}

double RateWish::bits() const { return std::exp2(code_ / kCodesPerOctave + kLeastOctave); }

RateTally& RateTally::operator+=(const RateTally& more) {
  for (std::size_t s = 0; s < kRateSites; ++s) {
    sites[s].bytes += more.sites[s].bytes;
    sites[s].values += more.sites[s].values;
  }
  if (more.word.code != RateWord::kNone) word.kind = more.word.kind;
  word.meet(more.word);
  for (std::size_t s = 0; s < kRateSites; ++s) own_squares[s] += more.own_squares[s];
  return *this;
}

double RateTally::bits() const {
  return (*this)[RateSite::partial].values == 0
             ? (*this)[RateSite::total].bits()
             : ((*this)[RateSite::partial].bits() + (*this)[RateSite::total].bits()) / 2;
}

void MagnitudeHistogram::add(std::span<const float> values, const float* residual,
                             const SegmentMemory& memory) {
  memory.count_magnitudes(values.data(), residual, values.size(),
                          std::span<std::int64_t, kBins>(counts_));
}

double MagnitudeHistogram::bits(double step) const {
  // By magnitude of the rounded multiple: how many values become 0, +-1, +-2 ...
  std::array<double, kMostCode + 1> codes = {};
  double all = 0;
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    if (counts_[bin] == 0) continue;
    const auto count = static_cast<double>(counts_[bin]);
    const double code = std::min(std::nearbyint(magnitude_of(bin) / step), double{kMostCode});
    codes[static_cast<std::size_t>(code)] += count;
    all += count;
  }
  double sum = 0;
  for (std::size_t code = 0; code <= kMostCode; ++code) {
    if (codes[code] == 0) continue;
    const double share = codes[code] / all;
    sum += share * ((code == 0 ? 0.0 : 1.0) - std::log2(share));
  }
  return sum;
}

std::optional<double> MagnitudeHistogram::largest() const {
  std::size_t last = kBins;
  while (last > 1 && counts_[last - 1] == 0) --last;
  if (last <= 1) return std::nullopt;  // bin 0 holds zeros and values that are nearly zero
  return magnitude_of(last - 1);
}

double MagnitudeHistogram::step_for(double bits_wanted) const {
  const std::optional<double> most_value = largest();
  if (!most_value) return 0.0;
  // The search needs no larger step sizes, because with more than twice the largest value all
  // values become zero. With smaller step sizes than `least`, the largest value would have no code.
  double most = std::log(2.2 * *most_value), least = std::log(*most_value / kMostCode);
  while (most - least > 0.01) {
    const double middle = (most + least) / 2;
    (bits(std::exp(middle)) <= bits_wanted ? most : least) = middle;
  }
  return std::exp(most);
}

double MagnitudeHistogram::relative_error(double step) const {
  double dropped = 0, all = 0;
  for (std::size_t bin = 1; bin < kBins; ++bin) {
    if (counts_[bin] == 0) continue;
    const auto count = static_cast<double>(counts_[bin]);
    const double value = magnitude_of(bin);
    const double code = std::min(std::nearbyint(value / step), double{kMostCode});
    // A bin is a quarter of an octave wide. For values above 4 step sizes the bin is about as wide
    // as a step size or wider, so rounding errors in it are taken to be evenly distributed.
    const double error = value > 4 * step ? step / std::sqrt(12.0) : std::abs(value - code * step);
    dropped += count * error * error;
    all += count * value * value;
  }
  return all > 0 ? std::sqrt(dropped / all) : 0.0;
}

double MagnitudeHistogram::step_for_error(double wanted) const {
  const std::optional<double> most_value = largest();
  if (!most_value) return 0.0;
  double most = std::log(2.2 * *most_value), least = std::log(*most_value / kMostCode);
  while (most - least > 0.01) {
    const double middle = (most + least) / 2;
    (relative_error(std::exp(middle)) <= wanted ? least : most) = middle;
  }
  return std::exp(least);
}

void RateController::start(const std::array<MagnitudeHistogram, kRateSites>& histograms,
                           double bits) {
  std::array<double, kRateSites> steps = {};
  for (std::size_t s = 0; s < kRateSites; ++s) steps[s] = histograms[s].step_for(bits);
  start_with(steps);
}

void RateController::start_for_error(const std::array<MagnitudeHistogram, kRateSites>& histograms,
                                     double error) {
  std::array<double, kRateSites> steps = {};
  for (std::size_t s = 0; s < kRateSites; ++s) steps[s] = histograms[s].step_for_error(error);
  start_with(steps);
}

void RateController::start_with(std::array<double, kRateSites> steps) {
  // A site without values, or with only zeros, takes the other site's step size.
  if (steps[0] == 0.0) steps[0] = steps[1];
  if (steps[1] == 0.0) steps[1] = steps[0];
  if (steps[0] == 0.0) return;
  for (std::size_t s = 0; s < kRateSites; ++s) {
    log_steps_[s] = std::llround(std::log2(steps[s] / scale_) / kUnit);
  }
  is_started_ = 1;
}

std::array<std::int64_t, 2> RateController::own_step(double step) {
  if (!(step > 0.0)) return {0, 0};
  return {std::llround(std::log2(step) / kUnit), 1};
}

void RateController::follow(const std::array<std::int64_t, 2>& sum) {
  if (sum[1] == 0) return;
  const std::int64_t mean = sum[0] / sum[1];
  const std::int64_t last = std::exchange(followed_, mean);
  if (last == kUnknown || !is_started()) return;
  for (std::int64_t& log_step : log_steps_) log_step += mean - last;
}

void RateController::set_scale(double scale) {
  scale_ = scale;
  followed_ = kUnknown;
}

void RateController::scale_steps(double ratio) {
  for (std::int64_t& log_step : log_steps_) log_step += std::llround(std::log2(ratio) / kUnit);
}

double RateController::wanted(double bits, std::size_t site) const {
  if (run_debt_.is_known()) return bits * run_debt_.share(site);
  const double debt = static_cast<double>(debts_[site]) * kUnit / kHorizon;
  return bits * (1.0 - std::clamp(debt, -kMostDebt, kMostDebt));
}

EvenOrder RateController::even_order(double bits) const {
  EvenOrder order;
  for (std::size_t s = 0; s < kRateSites; ++s) {
    order.bits[s] = wanted(bits, s);
    order.share_factors[s] = std::exp2(static_cast<double>(log_factors_[s]) * kUnit);
  }
  return order;
}

void RateController::update(const RateTally& tally, double bits, double next_bits, bool is_even) {
  constexpr double kLog2E = std::numbers::log2e;
  log_factors_ = {};
  for (std::size_t s = 0; s < kRateSites; ++s) {
    if (tally.sites[s].values == 0 || !is_started()) continue;
    const double sent = tally.sites[s].bits();
    const double over = sent / wanted(bits, s);
    const std::int64_t most_debt = std::llround(kMostDebt * kHorizon / kUnit);
    debts_[s] = std::clamp<std::int64_t>(debts_[s] + std::llround((sent / bits - 1.0) / kUnit),
                                         -most_debt, most_debt);
    double change = 0.0, most_change = kMostChange;
    if (is_even) {
      change = over - 1.0;
      most_change = kMostEvenChange;
      log_factors_[s] =
          -std::llround(std::log2(std::clamp(over, 1.0 / kMostFactor, kMostFactor)) / kUnit);
    } else {
      change = std::min(kMostGain, bits / 2) * (sent / wanted(bits, s) - 1.0);
    }
    change -= std::log(next_bits / bits) / 2;
    change = std::clamp(change, -most_change, most_change);
    log_steps_[s] += std::llround(change * kLog2E / kUnit);
  }
}

void RateController::update(const RateErrors& errors) {
  for (const RateSite site : {RateSite::partial, RateSite::total}) {
    if (!errors.is_given(site) || !is_started()) continue;
    const double change =
        std::clamp(-kMostGain * std::log2(errors.over_wanted(site)), -kMostChange, kMostChange);
    log_steps_[static_cast<std::size_t>(site)] += std::llround(change / kUnit);
  }
}

std::array<float, kRateSites> RateController::steps() const {
  if (!is_started()) return {};
  std::array<float, kRateSites> steps = {};
  for (std::size_t s = 0; s < kRateSites; ++s) {
    steps[s] = static_cast<float>(std::exp2(static_cast<double>(log_steps_[s]) * kUnit) * scale_);
  }
  return steps;
}

void RateController::list_state(StateVisitor& visitor, const std::string& prefix) {
  visitor.values(prefix + "/log_steps", std::span<std::int64_t>(log_steps_),
                 StateShare::replicated);
  visitor.values(prefix + "/debts", std::span<std::int64_t>(debts_), StateShare::replicated);
  visitor.values(prefix + "/factors", std::span<std::int64_t>(log_factors_),
                 StateShare::replicated);
  visitor.value(prefix + "/is_started", is_started_);
  visitor.value(prefix + "/followed", followed_);
  run_debt_.list_state(visitor, prefix);
}

}  // namespace dp
