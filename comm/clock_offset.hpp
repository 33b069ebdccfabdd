// How far apart the steady clocks of the ranks are, so that moments of all of them can be shown on
// one. (Those of processes on one host are the same; those of two hosts began at different times
// and run at speeds that differ by some millionths.)
//
// A rank asks rank 0 for the time and takes it to be that of the middle of the round trip: it is
// wrong by at most half of that, however the network divides it. The shortest of several is used
// (Cristian: Probabilistic clock synchronization, 1989).
#pragma once

#include <cstdint>
#include <functional>

#include "comm/communicator.hpp"

namespace dp {

// This rank's clock against rank 0's, at one moment. All zero but the moment on rank 0.
struct ClockReading {
  std::int64_t at_ns = 0;      // on this rank's clock
  std::int64_t offset_ns = 0;  // this rank's clock minus rank 0's
  std::int64_t error_ns = 0;   // the offset is right within this: half of the shortest round trip
};

// Collective, one rank after the other. `now_ns` reads this rank's clock. 40 round trips, and up to
// 0.1 s of them where none was short: on a busy processor few are.
[[nodiscard]] ClockReading read_clock_offset(Communicator& communicator,
                                             const std::function<std::int64_t()>& now_ns);

// Moments of this rank's clock on rank 0's, by two readings at different moments: in between and
// beyond, the offset changes steadily. Keeps the order of moments.
class ClockLine {
 public:
  ClockLine(const ClockReading& first, const ClockReading& last);
  [[nodiscard]] std::int64_t to_rank_0(std::int64_t at_ns) const;

 private:
  ClockReading first_;
  double drift_ = 0.0;  // of the offset, ns a ns
};

}  // namespace dp
