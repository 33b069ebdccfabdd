// The gradient sync's part for codecs with a rate: what is ordered before a step, and what follows
// from it (rate_control.hpp).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "comm/gradient_sync.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// The guard asks for no more.
constexpr double kMostGuardedBits = 6.0;
// With auto, velocities begin anew where something was delivered (velocity.hpp) only in steps that
// plan fewer bits. Masking takes momentum away, the more the more is delivered. That is like a
// lower learning rate, which some recipes gain from (ResNet-20 with 0.35 bits: a loss of 0.820,
// 0.864 without masking, fp32 0.872), and one whose rate is tuned does not: airbench94 with 0.4
// bits ended 1.2 points below fp32. Where hardly anything is delivered, both learn alike (ResNet-20
// with 0.1 bits: 0.896 and 0.899).
constexpr double kMostMaskedBits = 0.15;

bool is_dense(double bits) { return dense_bits_of(bits) != 0; }

}  // namespace

double GradientSync::seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void GradientSync::take_rate(const CodecSpec& spec) {
  mean_bits_ = planned_bits_ = spec.number("bits");
  wanted_error_ = spec.number("error");
  most_growth_ = spec.number("growth");
}

void GradientSync::set_mean_bits(double bits) {
  if (mean_bits_ <= 0.0 || limits_) {
    throw SettingError(Setting::codec, options_.compress,
                       "has no number of bits that could be set; allowed: ecq:bits=");
  }
  const double allowed = parse_codec_spec(fmt::format("ecq:bits={}", bits)).number("bits");
  if (!(allowed > 0.0)) {
    throw SettingError(Setting::codec, options_.compress, "needs more than 0 bits a value");
  }
  mean_bits_ = allowed;
}

void GradientSync::check_rate() const {
  if (!has_rate()) return;
  const auto refuse = [&](const char* why, Setting allowed) {
    throw SettingError(Setting::codec, options_.compress, why, ErrorKind::usage, allowed);
  };
  if (options_.reducer.topology == "hierarchical") {
    refuse(
        "bits= and error= need a topology on which all sums are encoded; allowed: direct, ring, "
        "tree, ps",
        Setting::topology);
  }
  if (mean_bits_ > 0.0 && wanted_error_ > 0.0) {
    refuse("bits= and error= exclude each other", Setting::codec);
  }
  if (wanted_error_ > 0.0 && !parse_codec_spec(codec_).feedback) {
    refuse("error= is measured in residuals; allowed: ef=on", Setting::codec);
  }
}

void GradientSync::watch_link() {
  constexpr double kUnknownLink = 125e6;  // soon corrected
  std::vector<BudgetBucket> shares;
  std::size_t hops = 0;
  double wire_factor = 0.0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    wire_factor = std::max(wire_factor, reducer_->wire_factor(b));
  }
  if (wire_factor == 0.0) return;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const bool is_rated = dp::has_rate(parse_codec_spec(buckets_[b].codec));
    const std::optional<std::uint64_t> bytes = reducer_->wire_bytes(b);
    shares.push_back({.elements = is_rated ? buckets_[b].elements : 0,
                      .fixed_bytes = static_cast<double>(bytes.value_or(0)) / wire_factor});
    hops = std::max(hops, reducer_->hops(b));
  }
  ready_s_.resize(buckets_.size());
  auto_rate_.emplace(
      std::move(shares), hops, wire_factor,
      AutoRateOptions{
          .bytes_per_s = options_.link_bytes_per_s > 0 ? options_.link_bytes_per_s : kUnknownLink,
          .latency_s = options_.link_latency_s});
}

// Where the bits of an exchange are that begins in this step or later.
std::optional<std::size_t> GradientSync::planned_from(std::uint64_t step) const {
  const std::vector<double>& bits = options_.planned_bits;
  if (!limits_ || bits.empty()) return std::nullopt;
  const auto is_given = [](double each) { return each > 0.0; };
  const auto begin =
      bits.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(step, bits.size()));
  const auto found = std::find_if(begin, bits.end(), is_given);
  if (found != bits.end()) return static_cast<std::size_t>(found - bits.begin());
  const auto last = std::find_if(bits.rbegin(), bits.rend(), is_given);
  if (last == bits.rend()) return std::nullopt;
  return static_cast<std::size_t>(bits.rend() - last) - 1;
}

double GradientSync::guarded(double bits) const {
  if (is_dense(bits)) return bits;
  return std::max(bits, std::min(bits * guard_.factor(), kMostGuardedBits));
}

void GradientSync::order_rate(std::uint64_t step, std::uint64_t number, double progress) {
  step_ = number;
  progress_ = progress;
  planned_at_ = planned_from(step);
  if (planned_at_) planned_bits_ = options_.planned_bits[*planned_at_];
  if (!limits_ && mean_bits_ > 0.0) {
    const double planned = planned_bits(mean_bits_, progress);
    planned_bits_ = guarded(planned);
    rate_.run_debt().begin_step(mean_bits_, progress, planned_bits_ / planned);
  }
  if (auto_rate_) {
    const double now_s = seconds_now();
    if (std::exchange(has_times_, false)) {
      times_.ready_s = ready_s_;
      if (is_gpu()) {
        // The host is not told; the thread that exchanges sees it.
        times_.ready_s = reducer_->started_s();
        times_.backward_end_s = std::ranges::max(times_.ready_s);
      }
      times_.next_begin_s = now_s;
      times_.backward_end_s +=
          hidden_share_ * std::max(0.0, now_s - times_.begin_s - times_.exposed_s);
      auto_rate_->add(times_);
    }
  }
  const bool sends_dense = is_dense(planned_bits_);
  // With a delay, training would wait here for the slowest rank.
  const bool may_look = is_round_ && hidden_share_ == 0.0;
  if (may_look && !sends_dense && wanted_error_ == 0.0) look_at_values();
  // What it has waited for there belongs to no step.
  if (auto_rate_) times_ = {.begin_s = seconds_now(), .ready_s = {}, .busy = {}};
  if (!rate_.is_started() && !histograms_ && !sends_dense) {
    histograms_ = std::make_unique<std::array<MagnitudeHistogram, kRateSites>>();
  }
  RateWord word{.kind = RateWord::Kind::wish, .code = RateWish::kNone, .has_alarm = told_[1] != 0};
  if (wanted_error_ > 0.0) {
    word.kind = RateWord::Kind::errors;
    // One rank after the other, so that the mean of all is what is steered.
    if (number % ranks_ == rank_) word.code = static_cast<std::uint16_t>(told_[0]);
  } else if (auto_rate_ && auto_rate_->is_known()) {
    word.code = RateWish::of_bits(auto_rate_->budget().bits_per_value).code();
  }
  reducer_->set_rate({.steps = rate_.steps(),
                      .dense_bits = dense_bits_of(planned_bits_),
                      .even = is_evened() ? rate_.even_order(planned_bits_) : EvenOrder{},
                      .word = word,
                      .measures_squares = wanted_error_ > 0.0 || ResidualGuard::measures_in(number),
                      .masks_velocities = !limits_ || planned_bits_ < kMostMaskedBits,
                      .histograms = histograms_.get()});
}

// The step of the quantiser with which this rank's own values would take the planned bits; the mean
// over ranks counts.
void GradientSync::look_at_values() {
  std::vector<float> copy;
  std::span<const float> gradient = gradient_, residual = reducer_->residual();
  if (is_gpu()) {
    copy = to_host(*device_, gradient_);
    gradient = copy;
  }
  std::vector<float> residual_copy;
  if (is_on_device_) {
    residual_copy = to_host(*device_, {residual.data(), residual.size()});
    residual = residual_copy;
  }
  MagnitudeHistogram histogram;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = reducer_->buckets()[b];
    if (!dp::has_rate(parse_codec_spec(bucket.codec))) continue;
    const ExchangePlan plan = reducer_->plan_of(b);
    for (const PlanTask& task : plan.tasks) {
      if (task.give != PlanTask::Give::partial) continue;
      const ExchangePlan::Segment& segment = plan.segments[task.segment];
      const std::size_t begin = bucket.offset + segment.begin;
      histogram.add(gradient.subspan(begin, segment.size),
                    residual.empty() ? nullptr : residual.data() + begin);
    }
  }
  std::array<std::int64_t, 2> sum = RateController::own_step(histogram.step_for(planned_bits_));
  reducer_->all_sum(sum);
  rate_.follow(sum);
}

void GradientSync::steer_rate(const StepVerdict& verdict) {
  // Without values, a warm-up sends them with another codec.
  if (verdict.rate.is_empty()) return;
  if (!verdict.finite) {
    skip_rate();
    return;
  }
  if (wanted_error_ == 0.0 && ResidualGuard::is_told_in(step_)) {
    guard_.update(verdict.rate.word.has_alarm);
  }
  std::array<double, kRateSites> sent = {};
  for (std::size_t s = 0; s < kRateSites; ++s) {
    const RateTally::Site& site = verdict.rate.sites[s];
    sent[s] = site.values == 0 ? -1.0 : site.bits();
  }
  rate_.run_debt().add(sent);
  // The least wish of all ranks is the plan of the next step.
  const RateWish wish = verdict.rate.wish();
  double next_bits = planned_bits_;
  if (limits_ && wish.is_given()) {
    next_bits = guarded(dense_choice_.next(wish.bits(), limits_->at(progress_)));
  }
  if (planned_at_) next_bits = options_.planned_bits[*planned_from(*planned_at_ + 1)];
  if (is_dense(planned_bits_)) {
    // Gradients have changed since the steps were found.
    if (!is_dense(next_bits)) rate_.stop();
  } else if (histograms_) {
    reducer_->run([&](Communicator& communicator) {
      for (MagnitudeHistogram& histogram : *histograms_) communicator.all_sum(histogram.counts());
    });
    if (wanted_error_ > 0.0) {
      rate_.start_for_error(*histograms_, wanted_error_);
    } else {
      rate_.start(*histograms_, planned_bits_);
    }
    histograms_.reset();
  } else if (wanted_error_ > 0.0) {
    rate_.update(verdict.rate.errors());
  } else {
    // In rounds, the next one's values say what the next plan needs.
    const bool is_foreseen = (is_round_ && hidden_share_ == 0.0) || is_dense(next_bits);
    rate_.update(verdict.rate, planned_bits_, is_foreseen ? planned_bits_ : next_bits, is_evened());
  }
  take_squares(verdict);
  report_rate(verdict);
  planned_bits_ = next_bits;
}

// After a step that all ranks skip: the next one has the same plan. A log must say what this one
// ran with, since another run may repeat it.
void GradientSync::skip_rate() {
  report_plan();
  rate_report_.wished_bits = RateReport::kNothing;
  rate_report_.bits.fill(RateReport::kNothing);
  // The values of the next step are counted alone.
  histograms_.reset();
}

// What this rank tells the others in the next step.
void GradientSync::take_squares(const StepVerdict& verdict) {
  told_ = {RateErrors::kNone, 0};
  const SiteSquares& squares = verdict.rate.own_squares;
  const EncodedSquares all = EncodedSquares(squares[0]) += squares[1];
  if (all.values == 0.0) return;
  if (wanted_error_ > 0.0) {
    told_[0] = RateErrors::of({squares[0].relative_error() / wanted_error_,
                               squares[1].relative_error() / wanted_error_})
                   .code();
  }
  told_[1] = most_growth_ > 0.0 && all.growth() > most_growth() ? 1 : 0;
  rate_report_.relative_error = all.relative_error();
  rate_report_.residual_growth = all.growth();
  rate_report_.grown_bucket = verdict.grown_bucket;
}

void GradientSync::report_plan() {
  rate_report_.planned_bits = planned_bits_ > 0.0 ? planned_bits_ : RateReport::kNothing;
}

void GradientSync::report_rate(const StepVerdict& verdict) {
  report_plan();
  rate_report_.guard_factor = guard_.factor();
  rate_report_.most_growth = most_growth();
  const RateWish wish = verdict.rate.wish();
  const bool is_wished = limits_ && wish.is_given();
  rate_report_.wished_bits = is_wished ? wish.bits() : RateReport::kNothing;
  if (auto_rate_ && auto_rate_->is_known()) {
    rate_report_.link_bytes_per_s = auto_rate_->bytes_per_s();
    rate_report_.hidden_bits = auto_rate_->budget().bits_per_value;
    rate_report_.binding_bucket = auto_rate_->budget().binding;
  }
  for (std::size_t s = 0; s < kRateSites; ++s) {
    rate_report_.bits[s] = verdict.rate.sites[s].bits();
    rate_report_.next_steps[s] = static_cast<double>(rate_.steps()[s]);
  }
}

void GradientSync::list_rate_state(StateVisitor& visitor) {
  const std::string prefix = "exchange/rate";
  rate_.list_state(visitor, prefix);
  visitor.value(prefix + "/planned_bits", planned_bits_);
  guard_.list_state(visitor, prefix);
  dense_choice_.list_state(visitor, prefix);
  visitor.values(prefix + "/told", std::span<std::int64_t>(told_), StateShare::own,
                 StatePlace::host, StateMerge::first);
}

}  // namespace dp
