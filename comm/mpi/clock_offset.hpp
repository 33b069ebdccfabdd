// Measures the offsets between the ranks' steady clocks, so that times of all ranks can be shown on
// one time axis. (Processes on one host have the same clock. The clocks of two hosts began at
// different times and run at speeds that differ by some millionths.)
//
// A rank asks rank 0 for the time and assumes that rank 0 read its clock in the middle of the round
// trip. The error is at most half of the round trip, even if one direction takes longer than the
// other. The shortest of several round trips is used (Cristian: Probabilistic clock
// synchronization, 1989).
#pragma once

#include <cstdint>
#include <functional>

#include "comm/mpi/communicator.hpp"

namespace dp {

// This rank's clock compared with rank 0's at one moment. On rank 0, offset and error are zero.
struct ClockReading {
  std::int64_t at_ns = 0;      // on this rank's clock
  std::int64_t offset_ns = 0;  // this rank's clock minus rank 0's
  std::int64_t error_ns = 0;   // the offset's largest error: half of the shortest round trip
};

// Collective; the ranks measure one after the other. `now_ns` reads this rank's clock. Each rank
// makes 40 round trips. If no round trip was short, as is usual on a busy processor, the rank makes
// more of them, for up to 0.1 s.
[[nodiscard]] ClockReading read_clock_offset(Communicator& communicator,
                                             const std::function<std::int64_t()>& now_ns);

// Converts times of this rank's clock to rank 0's, from two readings at different moments. The
// conversion assumes that the offset changes linearly, between the readings and beyond them. The
// conversion does not change the order of times.
class ClockLine {
 public:
  ClockLine(const ClockReading& first, const ClockReading& last);
  [[nodiscard]] std::int64_t to_rank_0(std::int64_t at_ns) const;

 private:
  ClockReading first_;
  double drift_ = 0.0;  // the change of the offset, in ns per ns
};

}  // namespace dp
