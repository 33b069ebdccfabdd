#include "comm/rate/auto_rate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace dp {
namespace {

constexpr std::uint64_t kFirstSteps = 3;

}  // namespace

unsigned dense_bits_of(double planned_bits) {
  for (const DenseForm& form : kDenseForms) {
    if (form.bits_per_value == planned_bits) return form.bits;
  }
  return 0;
}

double DenseChoice::next(double wished, const RateLimits& limits) {
  const auto fitting = [&](double margin) {
    std::int64_t finest = 0;
    for (std::size_t f = 0; limits.allows_dense && f < kDenseForms.size(); ++f) {
      const double bits = kDenseForms[f].bits_per_value;
      if (bits >= limits.least_bits && wished >= bits * margin) {
        finest = static_cast<std::int64_t>(f) + 1;
      }
    }
    return finest;
  };
  if (fitting(1.0) < form_) {
    form_ = fitting(1.0);
    steps_ = 0;
    patience_ = std::min(2 * patience_, kMostPatience);
  } else if (fitting(kMargin) <= form_) {
    steps_ = 0;
  } else if (++steps_ >= patience_) {
    form_ = fitting(kMargin);
    steps_ = 0;
  }
  return form_ > 0 ? kDenseForms[static_cast<std::size_t>(form_ - 1)].bits_per_value
                   : limits.limited(wished);
}

void DenseChoice::list_state(StateVisitor& visitor, const std::string& prefix) {
  visitor.value(prefix + "/dense_form", form_);
  visitor.value(prefix + "/dense_steps", steps_);
  visitor.value(prefix + "/dense_patience", patience_);
}

void LinkRateEstimate::add(const BusyPeriod& period, double least_overhead_s) {
  const double wire_s = period.wire_s();
  if (period.sent_bytes == 0 || wire_s <= 0.0) return;
  const auto bytes = static_cast<double>(period.sent_bytes);
  const std::size_t at = count_++ % kPeriods;
  last_times_[at] = wire_s;
  learn_overhead(bytes, wire_s);
  // A learnt overhead of less than half of the time is ignored: it may be an error of the slope,
  // and it matters little.
  const bool explains = learnt_s_ > 0.5 * wire_s && learnt_s_ > least_overhead_s;
  overhead_s_ = explains ? learnt_s_ : least_overhead_s;
  const double least = bytes / (wire_s + period.peer_wait_s);  // others may have sent in the wait
  // If latency is half of the time or more, the time gives no upper bound of the bandwidth.
  constexpr double kLeastShare = 0.5, kRise = 1.1;
  const bool is_bound = wire_s - overhead_s_ > kLeastShare * wire_s;
  const double most =
      is_bound ? bytes / (wire_s - overhead_s_) : std::numeric_limits<double>::infinity();
  const bool rises = !is_bound && bytes_per_s_ < first_;
  const double guess = rises ? std::min(kRise * bytes_per_s_, first_) : bytes_per_s_;
  last_[at] = std::clamp(guess, least, most);
  bytes_per_s_ = median(last_);
}

void LinkRateEstimate::add_late(const BusyPeriod& period) {
  const double all_s = period.end_s - period.begin_s;
  if (period.sent_bytes == 0 || all_s <= 0.0) return;
  const std::size_t at = count_++ % kPeriods;
  last_times_[at] = all_s;
  last_[at] = std::max(bytes_per_s_, static_cast<double>(period.sent_bytes) / all_s);
  bytes_per_s_ = median(last_);
}

void LinkRateEstimate::learn_overhead(double bytes, double wire_s) {
  constexpr double kLeastDifference = 0.1, kForget = 0.8, kLeastWeight = 0.3;
  const double more_bytes = bytes - last_bytes_, more_s = wire_s - last_wire_s_;
  const bool is_first = std::exchange(last_bytes_, bytes) == 0.0;
  last_wire_s_ = wire_s;
  if (!is_first && std::abs(more_bytes) > kLeastDifference * bytes) {
    square_sum_ = kForget * square_sum_ + more_bytes * more_bytes;
    product_sum_ = kForget * product_sum_ + more_bytes * more_s;
    const double s_per_byte = std::max(0.0, product_sum_ / square_sum_);
    const double weight = std::max(kLeastWeight, more_bytes * more_bytes / square_sum_);
    learnt_s_ += weight * (std::max(0.0, wire_s - s_per_byte * bytes) - learnt_s_);
  }
  learnt_s_ = std::min(learnt_s_, median(last_times_));
}

double LinkRateEstimate::median(std::array<double, kPeriods> last) const {
  const std::size_t size = std::min(count_, kPeriods);
  std::sort(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(size));
  return last[size / 2];
}

AutoRate::AutoRate(std::vector<BudgetBucket> buckets, std::size_t hops, double wire_factor,
                   const AutoRateOptions& options)
    : buckets_(std::move(buckets)),
      hops_(hops),
      wire_factor_(wire_factor),
      options_(options),
      link_(options.bytes_per_s) {}

void AutoRate::add(const StepTimes& step) {
  const double busy_s = step.busy.end_s - step.busy.begin_s;
  // If this rank waited long for another rank, the period gives only a lower bound of the link's
  // bandwidth.
  const bool is_frozen = step.busy.peer_wait_s > kMostPeerWait * busy_s;
  if (is_frozen) {
    link_.add_late(step.busy);
  } else {
    const double late_s = std::max(kWakeUp_s, step.busy.late_s());
    link_.add(step.busy, static_cast<double>(hops_) * (options_.latency_s + late_s));
  }
  const double weight = steps_ < kFirstSteps ? 1.0 : 0.25;  // the first steps are unusual
  const auto approach = [&](double& mean, double value) { mean += weight * (value - mean); };
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    approach(buckets_[b].ready_s, step.ready_s[b] - step.begin_s);
  }
  approach(backward_end_s_, step.backward_end_s - step.begin_s);
  approach(compute_s_, step.next_begin_s - step.begin_s - step.exposed_s);
  approach(codec_s_, step.busy.codec_s);
  const double slack_s = kSlack * compute_s_;
  ++steps_;
  if (!is_frozen) {
    const double excess_s = step.exposed_s - step.busy.peer_wait_s - slack_s;
    margin_s_ = std::clamp(margin_s_ + kGain * excess_s, 0.0, codec_s_);
  }
  budget_ = hidden_rate(
      {.buckets = buckets_,
       .backward_end_s = backward_end_s_ - margin_s_,
       .slack_s = slack_s,
       .goodput_bytes_per_s = link_.bytes_per_s(),
       .latency_s = hops_ == 0 ? 0.0
                               : std::max(options_.latency_s + kWakeUp_s,
                                          link_.overhead_s() / static_cast<double>(hops_)),
       .hops = hops_,
       .wire_factor = wire_factor_});
}

}  // namespace dp
