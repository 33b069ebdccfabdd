#include "comm/reducer/trace_slices.hpp"

#include <algorithm>
#include <vector>

namespace dp {

std::int64_t put_on_one_clock(Communicator& communicator, const ClockReading& first,
                              std::initializer_list<TraceTrack*> tracks) {
  const ClockReading last = read_clock_offset(communicator, trace_clock_ns);
  const ClockLine line(first, last);
  const std::int64_t zero_ns = communicator.all_gather(first.at_ns).front();
  for (TraceTrack* track : tracks) {
    for (TraceEvent& event : track->events()) {
      event.begin_ns = line.to_rank_0(event.begin_ns) - zero_ns;
      event.end_ns = line.to_rank_0(event.end_ns) - zero_ns;
    }
    std::ranges::sort(track->events(), [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
  }
  return std::max(first.error_ns, last.error_ns);
}

std::size_t gather_slices(
    Communicator& communicator, std::span<const TraceEvent> mine,
    const std::function<void(std::size_t rank, std::span<const TraceEvent>)>& take) {
  constexpr std::size_t kChunk = 4096;  // slices of each rank that are gathered at once
  const std::vector<std::size_t> counts = communicator.all_gather(mine.size());
  std::vector<TraceEvent> chunk(kChunk);
  std::size_t gathered = 0;
  for (std::size_t begin = 0; begin < std::ranges::max(counts); begin += kChunk) {
    const auto count_of = [&](std::size_t all) {
      return std::min(all - std::min(all, begin), kChunk);
    };
    if (begin < mine.size())
      std::ranges::copy(mine.subspan(begin, count_of(mine.size())), chunk.begin());
    const std::vector<TraceEvent> rows =
        communicator.gather_rows(std::span<const TraceEvent>(chunk));
    if (communicator.rank() != 0) continue;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      const auto its = std::span(rows).subspan(rank * kChunk, count_of(counts[rank]));
      take(rank, its);
      gathered += its.size();
      communicator.serve();
    }
  }
  return gathered;
}

}  // namespace dp
