// Puts the trace slices of all ranks on rank 0's clock, and gathers them on rank 0.
//
// Every rank reads the offset of its clock (clock_offset.hpp) before the trace begins. Call these
// functions after the trace has ended. Both are collective, and failures are the communicator's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>

#include "comm/mpi/clock_offset.hpp"
#include "comm/mpi/communicator.hpp"
#include "kernels/base/trace.hpp"

namespace dp {

// Reads the clock offset once more. Converts the slices' times to rank 0's clock, counted from rank
// 0's first reading, and sorts each track as the trace file requires. Returns the largest possible
// error of this rank's times, in ns.
[[nodiscard]] std::int64_t put_on_one_clock(Communicator& communicator, const ClockReading& first,
                                            std::initializer_list<TraceTrack*> tracks);

// Passes the slices of each rank to `take` on rank 0, one chunk after the other. Returns the number
// of slices that rank 0 got.
std::size_t gather_slices(
    Communicator& communicator, std::span<const TraceEvent> mine,
    const std::function<void(std::size_t rank, std::span<const TraceEvent>)>& take);

}  // namespace dp
