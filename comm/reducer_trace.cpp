// What the reducer's thread tells a trace, beside the codecs' slices.
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

// For whom the thread has waited is asked of the oldest bucket that is not over, as in account().
void Reducer::trace_wait(Clock::time_point begin) {
  std::size_t oldest = first_open_;
  while (oldest < started_ && exchanges_[oldest]->done()) ++oldest;
  if (oldest == started_) return;
  const bool is_for_peer = exchanges_[oldest]->waits_for_peer();
  options_.trace->add_or_extend(
      {.begin_ns = trace_ns(begin),
       .end_ns = trace_clock_ns(),
       .step = options_.trace->step(),
       .id = static_cast<std::uint32_t>(oldest),
       .kind = is_for_peer ? TraceKind::peer_wait : TraceKind::wire_wait});
}

}  // namespace dp
