#include "comm/rate/rate_governor.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// The guard raises the bits to at most this many.
constexpr double kMostGuardedBits = 6.0;
// `auto` masks velocities (velocity.hpp) only in training steps that plan fewer bits a value than
// this. Masking removes momentum: the more is delivered, the more momentum is removed. This acts
// like a lower learning rate. Some recipes gain from masking: ResNet-20 with 0.35 bits has a loss
// of 0.820 with masking and 0.864 without, against 0.872 in fp32. A recipe with a tuned learning
// rate does not gain: with masking and 0.4 bits, airbench94 ended 1.2 points below fp32. When
// hardly anything is delivered, masking makes little difference (ResNet-20 with 0.1 bits: 0.896 and
// 0.899). With Adam's steps, masking also helps at more bits: a GPT with 0.35 bits ends at a loss
// of 2.49 with masking and 2.54 without, against 2.50 in fp32 (experiments/studies/adam.md).
constexpr double kMostMaskedBits = 0.15, kMostMaskedBitsOfAdam = 0.5;

bool is_dense(double bits) { return dense_bits_of(bits) != 0; }

}  // namespace

RateGovernor::RateGovernor(const CodecSpec& spec, RateGovernorOptions options)
    : options_(std::move(options)),
      mean_bits_(spec.number("bits")),
      wanted_error_(spec.number("error")),
      most_growth_(spec.number("growth")),
      planned_bits_(mean_bits_) {
  check(spec.feedback);
}

void RateGovernor::check(bool has_feedback) const {
  const auto refuse = [&](const char* why, Setting allowed) {
    throw SettingError(Setting{"codec"}, options_.compress, why, ErrorKind::usage, allowed);
  };
  if (options_.topology == "hierarchical") {
    refuse(
        "bits= and error= need a topology on which all sums are encoded; allowed: direct, grid, "
        "ring, tree, ps",
        Setting{"topology"});
  }
  if (mean_bits_ > 0.0 && wanted_error_ > 0.0) {
    refuse("bits= and error= exclude each other", Setting{"codec"});
  }
  if (wanted_error_ > 0.0 && !has_feedback) {
    refuse(
        "error= needs error feedback, because the error is measured in residuals; allowed: ef=on",
        Setting{"codec"});
  }
}

void RateGovernor::connect(int rank, int ranks, std::optional<StepWatch> watch) {
  rank_ = static_cast<std::uint64_t>(rank);
  ranks_ = static_cast<std::uint64_t>(ranks);
  watch_ = std::move(watch);
}

void RateGovernor::set_mean_bits(double bits) {
  const double allowed = parse_codec_spec(fmt::format("ecq:bits={}", bits)).number("bits");
  if (!(allowed > 0.0)) {
    throw SettingError(Setting{"codec"}, options_.compress, "needs more than 0 bits per value");
  }
  mean_bits_ = allowed;
}

void RateGovernor::set_round(const RatedRound& round) {
  round_ = round;
  // If the values are examined before the exchange, the step sizes follow from the values, and the
  // expected ratio is not needed.
  if (!is_foreseen()) controller_.scale_steps(round.value_ratio);
}

void RateGovernor::start_anew(double scale) {
  controller_ = {};
  controller_.set_scale(scale);
  histograms_.reset();
  if (watch_) watch_->forget();
}

// ---- before a step ------------------------------------------------------------------------------

// Returns the index in planned_bits of the first exchange that begins in this step or later.
std::optional<std::size_t> RateGovernor::planned_from(std::uint64_t step) const {
  const std::vector<double>& bits = options_.planned_bits;
  if (!options_.limits || bits.empty()) return std::nullopt;
  const auto is_given = [](double each) { return each > 0.0; };
  const auto begin =
      bits.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(step, bits.size()));
  const auto found = std::find_if(begin, bits.end(), is_given);
  if (found != bits.end()) return static_cast<std::size_t>(found - bits.begin());
  const auto last = std::find_if(bits.rbegin(), bits.rend(), is_given);
  if (last == bits.rend()) return std::nullopt;
  return static_cast<std::size_t>(bits.rend() - last) - 1;
}

double RateGovernor::guarded(double bits) const {
  if (is_dense(bits)) return bits;
  return std::max(bits, std::min(bits * guard_.factor(), kMostGuardedBits));
}

void RateGovernor::begin_step(std::uint64_t step, double progress, double now_s,
                              std::span<const double> started_s) {
  number_ = round_ ? round_->number : step;
  progress_ = progress;
  planned_at_ = planned_from(step);
  if (planned_at_) planned_bits_ = options_.planned_bits[*planned_at_];
  if (!options_.limits && mean_bits_ > 0.0) {
    const double planned = planned_bits(mean_bits_, progress);
    planned_bits_ = guarded(planned);
    controller_.run_debt().begin_step(mean_bits_, progress, planned_bits_ / planned);
  }
  if (watch_) watch_->last_is_over(now_s, started_s, round_ ? round_->hidden_share : 0.0);
}

// False for rounds that overlap computation (hidden_share above 0): examining the values is
// collective, so training would wait here for the slowest rank.
bool RateGovernor::looks_at_values() const {
  return is_foreseen() && !is_dense(planned_bits_) && wanted_error_ == 0.0;
}

// Codes the step size with which this rank's own values would take the planned bits. follow() uses
// the mean over ranks.
std::array<std::int64_t, 2> RateGovernor::own_step(const MagnitudeHistogram& values) const {
  return RateController::own_step(values.step_for(planned_bits_));
}

RateOrder RateGovernor::order(double now_s) {
  // Since begin_step() the values may have been examined. This time belongs to no step, so the
  // step's times begin now.
  if (watch_) watch_->begin(now_s);
  if (!controller_.is_started() && !histograms_ && !is_dense(planned_bits_)) {
    histograms_ = std::make_unique<std::array<MagnitudeHistogram, kRateSites>>();
  }
  RateWord word{.kind = RateWord::Kind::wish, .code = RateWish::kNone, .has_alarm = told_[1] != 0};
  if (wanted_error_ > 0.0) {
    word.kind = RateWord::Kind::errors;
    // The ranks take turns, one in each step. If all reported, only the largest error would count,
    // but the mean over ranks is to be controlled.
    if (number_ % ranks_ == rank_) word.code = static_cast<std::uint16_t>(told_[0]);
  } else if (watch_ && watch_->rate().is_known()) {
    word.code = RateWish::of_bits(watch_->rate().budget().bits_per_value).code();
  }
  return {.steps = controller_.steps(),
          .dense_bits = dense_bits_of(planned_bits_),
          .even = is_evened() ? controller_.even_order(planned_bits_) : EvenOrder{},
          .word = word,
          .measures_squares = wanted_error_ > 0.0 || ResidualGuard::measures_in(number_),
          .masks_velocities =
              !options_.limits ||
              planned_bits_ < (options_.is_adam ? kMostMaskedBitsOfAdam : kMostMaskedBits),
          .histograms = histograms_.get()};
}

// ---- after a step -------------------------------------------------------------------------------

void RateGovernor::end_step(const RateTally& tally, bool is_finite,
                            std::optional<std::size_t> grown_bucket, const SumOverRanks& sum) {
  // Empty during a warm-up, which uses another codec.
  if (tally.is_empty()) return;
  if (!is_finite) {
    skip_step();
    return;
  }
  if (wanted_error_ == 0.0 && ResidualGuard::is_told_in(number_)) {
    guard_.update(tally.word.has_alarm);
  }
  std::array<double, kRateSites> sent = {};
  for (std::size_t s = 0; s < kRateSites; ++s) {
    const RateTally::Site& site = tally.sites[s];
    sent[s] = site.values == 0 ? -1.0 : site.bits();
  }
  controller_.run_debt().add(sent);
  const double next = next_bits(tally);
  move_steps(tally, next, sum);
  take_squares(tally, grown_bucket);
  report_step(tally);
  planned_bits_ = next;
}

// The planned bits of the next training step. With `auto` they follow from the least wish of all
// ranks.
double RateGovernor::next_bits(const RateTally& tally) {
  double next = planned_bits_;
  const RateWish wish = tally.wish();
  if (options_.limits && wish.is_given()) {
    next = guarded(dense_choice_.next(wish.bits(), options_.limits->at(progress_)));
  }
  if (planned_at_) next = options_.planned_bits[*planned_from(*planned_at_ + 1)];
  return next;
}

void RateGovernor::move_steps(const RateTally& tally, double next_bits, const SumOverRanks& sum) {
  if (is_dense(planned_bits_)) {
    // The last step sizes were found for older gradients, so the controller must find new step
    // sizes.
    if (!is_dense(next_bits)) controller_.stop();
  } else if (histograms_) {
    for (MagnitudeHistogram& histogram : *histograms_) sum(histogram.counts());
    if (wanted_error_ > 0.0) {
      controller_.start_for_error(*histograms_, wanted_error_);
    } else {
      controller_.start(*histograms_, planned_bits_);
    }
    histograms_.reset();
  } else if (wanted_error_ > 0.0) {
    controller_.update(tally.errors());
  } else {
    // If the next round's values are examined first, follow() adapts the step sizes to them.
    const bool keeps_plan = is_foreseen() || is_dense(next_bits);
    controller_.update(tally, planned_bits_, keeps_plan ? planned_bits_ : next_bits, is_evened());
  }
}

// Called after a training step that all ranks skip. The next training step has the same plan. The
// skipped step's report contains the plan, too, since another run may repeat this run from the log.
void RateGovernor::skip_step() {
  report_plan();
  report_.wished_bits = RateReport::kNothing;
  report_.bits.fill(RateReport::kNothing);
  // The next step's histogram must not include this step's values.
  histograms_.reset();
}

// Prepares this rank's report for the next step.
void RateGovernor::take_squares(const RateTally& tally, std::optional<std::size_t> grown_bucket) {
  told_ = {RateErrors::kNone, 0};
  const SiteSquares& squares = tally.own_squares;
  const EncodedSquares all = EncodedSquares(squares[0]) += squares[1];
  if (all.values == 0.0) return;
  if (wanted_error_ > 0.0) {
    told_[0] = RateErrors::of({squares[0].relative_error() / wanted_error_,
                               squares[1].relative_error() / wanted_error_})
                   .code();
  }
  told_[1] = most_growth_ > 0.0 && all.growth() > most_growth() ? 1 : 0;
  report_.relative_error = all.relative_error();
  report_.residual_growth = all.growth();
  report_.grown_bucket = grown_bucket;
}

void RateGovernor::report_plan() {
  report_.planned_bits = planned_bits_ > 0.0 ? planned_bits_ : RateReport::kNothing;
}

void RateGovernor::report_step(const RateTally& tally) {
  report_plan();
  report_.guard_factor = guard_.factor();
  report_.most_growth = most_growth();
  const RateWish wish = tally.wish();
  const bool is_wished = options_.limits && wish.is_given();
  report_.wished_bits = is_wished ? wish.bits() : RateReport::kNothing;
  if (watch_ && watch_->rate().is_known()) {
    report_.link_bytes_per_s = watch_->rate().bytes_per_s();
    report_.hidden_bits = watch_->rate().budget().bits_per_value;
    report_.binding_bucket = watch_->rate().budget().binding;
  }
  for (std::size_t s = 0; s < kRateSites; ++s) {
    report_.bits[s] = tally.sites[s].bits();
    report_.next_steps[s] = static_cast<double>(controller_.steps()[s]);
  }
}

void RateGovernor::list_state(StateVisitor& visitor) {
  const std::string prefix = "exchange/rate";
  controller_.list_state(visitor, prefix);
  visitor.value(prefix + "/planned_bits", planned_bits_);
  guard_.list_state(visitor, prefix);
  dense_choice_.list_state(visitor, prefix);
  visitor.values(prefix + "/told", std::span<std::int64_t>(told_), StateShare::own,
                 StatePlace::host, StateMerge::first);
}

}  // namespace dp
