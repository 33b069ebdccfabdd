// What the reducer's thread tells a trace, beside the codecs' slices.
#include <algorithm>
#include <utility>

#include "comm/reducer.hpp"

namespace dp {

void Reducer::trace_start(std::size_t bucket) {
  starts_[bucket] = {trace_clock_ns(), exchanges_[bucket]->stats().sent_bytes};
}

void Reducer::trace_delivered(std::size_t bucket) {
  const Start start = std::exchange(starts_[bucket], {});
  options_.trace->add({.begin_ns = start.at_ns,
                       .end_ns = trace_clock_ns(),
                       .bytes = exchanges_[bucket]->stats().sent_bytes - start.sent_bytes,
                       .step = options_.trace->step(),
                       .id = static_cast<std::uint32_t>(bucket),
                       .kind = TraceKind::bucket});
}

// What no codec and no hook had of the time between two looks is waiting, as in account(): for the
// network or, where the oldest bucket that is not over waits for one, for a rank.
void Reducer::trace_idle(Clock::time_point begin, Clock::time_point end) {
  TraceTrack& track = *options_.trace;
  if (!track.is_on() || started_ == 0) return;
  std::size_t oldest = std::min(first_open_, started_ - 1);
  while (oldest + 1 < started_ && exchanges_[oldest]->done()) ++oldest;
  const TraceKind kind =
      exchanges_[oldest]->waits_for_peer() ? TraceKind::peer_wait : TraceKind::wire_wait;
  const auto wait = [&](std::int64_t begin_ns, std::int64_t end_ns) {
    // Shorter ones, between two calls of a codec, are no news.
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
  std::int64_t at_ns = trace_ns(begin);
  for (const std::size_t all = track.events().size(); traced_ < all; ++traced_) {
    const TraceEvent event = track.events()[traced_];
    if (event.kind == TraceKind::bucket || event.begin_ns < at_ns) continue;
    wait(at_ns, event.begin_ns);
    at_ns = event.end_ns;
  }
  wait(at_ns, trace_ns(end));
  traced_ = track.events().size();
}

}  // namespace dp
