#include "comm/reducer/exchange_meter.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dp {
namespace {

double ratio_root(double a, double b) { return b > 0.0 ? std::sqrt(a / b) : 0.0; }

double seconds_of(ExchangeMeter::Clock::time_point moment) {
  return std::chrono::duration<double>(moment.time_since_epoch()).count();
}

double rest_of(const CommCost& cost) {
  return std::max(0.0, cost.comm_s - cost.encode_s - cost.decode_s - cost.peer_wait_s);
}

}  // namespace

double CommCost::relative_error() const {
  return ratio_root(sampled.error_squares, sampled.value_squares);
}
double CommCost::saturation() const {
  return sampled.values > 0
             ? static_cast<double>(sampled.saturated) / static_cast<double>(sampled.values)
             : 0.0;
}
double CommCost::delivered_relative_error() const {
  return ratio_root(delivered_error_squares, delivered_value_squares);
}
double CommCost::residual_norm() const { return std::sqrt(residual_squares); }

ExchangeMeter::ExchangeMeter(Exchanges exchanges, TraceTrack* trace,
                             std::function<Clock::time_point()> now)
    : exchanges_(exchanges), trace_(trace), now_(std::move(now)), accounted_(now_()) {
  times_.buckets.resize(exchanges_.size());
  hook_s_.resize(exchanges_.size());
  starts_.resize(exchanges_.size());
  started_s_.resize(exchanges_.size());
}

void ExchangeMeter::account(std::size_t first, std::size_t end) {
  const Clock::time_point now = now_();
  const double passed_s = std::chrono::duration<double>(now - accounted_).count();
  if (trace_ != nullptr) trace_wait(first, end, now);
  accounted_ = now;
  double codec_s = 0.0;
  for (const auto& exchange : exchanges_) {
    codec_s += exchange->stats().encode_s + exchange->stats().decode_s;
  }
  for (const double hook_s : hook_s_) codec_s += hook_s;
  const double idle_s = std::max(0.0, passed_s - (codec_s - seen_codec_s_));
  seen_codec_s_ = codec_s;
  times_.total.comm_s += passed_s;
  bool is_oldest = true;
  for (std::size_t b = first; b < end; ++b) {
    if (exchanges_[b]->done()) continue;
    times_.buckets[b].comm_s += passed_s;
    if (exchanges_[b]->waits_for_peer()) {
      times_.buckets[b].peer_wait_s += idle_s;
      if (is_oldest) times_.total.peer_wait_s += idle_s;
    }
    is_oldest = false;
  }
}

void ExchangeMeter::account_gathering() {
  const Clock::time_point now = now_();
  times_.total.comm_s += std::chrono::duration<double>(now - accounted_).count();
  accounted_ = now;
}

void ExchangeMeter::account_waiting() {
  const double before_s = times_.total.comm_s;
  account_gathering();
  times_.total.peer_wait_s += times_.total.comm_s - before_s;
}

void ExchangeMeter::add_hook(std::size_t bucket, double hook_s) {
  hook_s_[bucket] += hook_s;
  if (exchanges_[bucket]->done()) times_.buckets[bucket].comm_s += hook_s;
}

void ExchangeMeter::add_error(std::size_t bucket, const ErrorSample::Result& result) {
  times_.buckets[bucket].delivered_error_squares += result.error_squares;
  times_.buckets[bucket].delivered_value_squares += result.value_squares;
  times_.buckets[bucket].sample_bytes += result.sent_bytes;
}

void ExchangeMeter::busy_begins() {
  busy_ = {};
  busy_ = busy_until_now();
  busy_.begin_s = busy_.end_s;
}

BusyPeriod ExchangeMeter::busy_until_now() const {
  BusyPeriod period{.begin_s = busy_.begin_s,
                    .end_s = seconds_of(now_()),
                    .peer_wait_s = times_.total.peer_wait_s - busy_.peer_wait_s,
                    .nap_squares = nap_squares_ - busy_.nap_squares};
  for (const auto& exchange : exchanges_) {
    const ExchangeStats& stats = exchange->stats();
    period.sent_bytes += stats.sent_bytes;
    period.codec_s += stats.encode_s + stats.decode_s;
  }
  period.sent_bytes -= busy_.sent_bytes;
  period.codec_s -= busy_.codec_s;
  return period;
}

CommTimes ExchangeMeter::take() {
  CommTimes taken = times_;
  CommCost& total = taken.total;
  for (std::size_t b = 0; b < exchanges_.size(); ++b) {
    CommCost& cost = taken.buckets[b];
    const ExchangeStats& stats = exchanges_[b]->stats();
    cost.encode_s = stats.encode_s + std::exchange(hook_s_[b], 0.0);
    cost.decode_s = stats.decode_s;
    cost.wire_s = rest_of(cost);
    cost.sent_bytes = stats.sent_bytes;
    cost.received_bytes = stats.received_bytes;
    cost.sent_messages = stats.sent_messages;
    cost.sampled = stats.sampled;
    total.encode_s += cost.encode_s;
    total.decode_s += cost.decode_s;
    total.sent_bytes += cost.sent_bytes;
    total.received_bytes += cost.received_bytes;
    total.sent_messages += cost.sent_messages;
    total.sampled += cost.sampled;
    total.delivered_error_squares += cost.delivered_error_squares;
    total.delivered_value_squares += cost.delivered_value_squares;
    total.sample_bytes += cost.sample_bytes;
    exchanges_[b]->clear_stats();
    times_.buckets[b] = {};
  }
  total.wire_s = rest_of(total);
  times_.total = {};
  seen_codec_s_ = 0.0;
  return taken;
}

void ExchangeMeter::bucket_starts(std::size_t bucket) {
  const Clock::time_point now = now_();
  started_s_[bucket] = seconds_of(now);
  if (trace_ == nullptr) return;
  starts_[bucket] = {trace_ns(now), exchanges_[bucket]->stats().sent_bytes};
}

void ExchangeMeter::bucket_delivered(std::size_t bucket) {
  if (trace_ == nullptr) return;
  const Start& start = starts_[bucket];
  trace_->add({.begin_ns = start.at_ns,
               .end_ns = trace_ns(now_()),
               .bytes = exchanges_[bucket]->stats().sent_bytes - start.sent_bytes,
               .step = trace_->step(),
               .id = static_cast<std::uint32_t>(bucket),
               .kind = TraceKind::bucket});
}

// Adds waits to the trace. As in account(), the waits are the time since the last look, without the
// time in which codecs and hooks ran. If the oldest bucket that is not done waits for a rank, the
// trace shows a wait for that rank. Otherwise the trace shows a wait for the network.
void ExchangeMeter::trace_wait(std::size_t first, std::size_t end, Clock::time_point until) {
  TraceTrack& track = *trace_;
  if (!track.is_on() || end == 0) return;
  std::size_t oldest = std::min(first, end - 1);
  while (oldest + 1 < end && exchanges_[oldest]->done()) ++oldest;
  const TraceKind kind =
      exchanges_[oldest]->waits_for_peer() ? TraceKind::peer_wait : TraceKind::wire_wait;
  const auto wait = [&](std::int64_t begin_ns, std::int64_t end_ns) {
    // Do not trace the short gaps between two calls of a codec.
    constexpr std::int64_t kShortest_ns = 20'000;
    TraceEvent* last = last_wait_ < track.events().size() ? &track.events()[last_wait_] : nullptr;
    if (last != nullptr && last->end_ns == begin_ns && last->kind == kind && last->id == oldest) {
      last->end_ns = end_ns;
    } else if (end_ns - begin_ns >= kShortest_ns) {
      last_wait_ = track.events().size();
      track.add({.begin_ns = begin_ns,
                 .end_ns = end_ns,
                 .step = track.step(),
                 .id = static_cast<std::uint32_t>(oldest),
                 .kind = kind});
    }
  };
  std::int64_t at_ns = trace_ns(accounted_);
  for (const std::size_t all = track.events().size(); traced_ < all; ++traced_) {
    const TraceEvent event = track.events()[traced_];
    if (event.kind == TraceKind::bucket || event.kind == TraceKind::gather ||
        event.begin_ns < at_ns)
      continue;
    wait(at_ns, event.begin_ns);
    at_ns = event.end_ns;
  }
  wait(at_ns, trace_ns(until));
  traced_ = track.events().size();
}

}  // namespace dp
