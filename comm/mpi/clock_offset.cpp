#include "comm/mpi/clock_offset.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "comm/mpi/mpi_check.hpp"
#include "comm/mpi/seal.hpp"
#include "comm/mpi/tags.hpp"

namespace dp {
namespace {

constexpr int kFewestTrips = 40;
constexpr std::int64_t kGoodError_ns = 20'000, kLongest_ns = 100'000'000;

// Polls without sleeping at first, because a sleep would be part of the round trip.
void finish(Communicator& communicator, MPI_Request& request) {
  constexpr int kLooks = 5000;
  for (int look = 0; look < kLooks; ++look) {
    int is_done = 0;
    DP_CHECK_MPI(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE));
    if (is_done != 0) return;
    std::this_thread::yield();
  }
  communicator.wait(request, "a comparison of clocks");
}

void send(Communicator& communicator, std::int64_t value, int to) {
  const Sealed message(value);
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Isend(message.data(), message.kBytes, MPI_BYTE, to, kClockTag,
                         communicator.handle(), &request));
  finish(communicator, request);
}

std::int64_t receive(Communicator& communicator, int from) {
  Sealed<std::int64_t> message;
  MPI_Request request = MPI_REQUEST_NULL;
  DP_CHECK_MPI(MPI_Irecv(message.data(), message.kBytes, MPI_BYTE, from, kClockTag,
                         communicator.handle(), &request));
  finish(communicator, request);
  if (!message.is_intact()) communicator.throw_damaged("a comparison of clocks", from);
  return message.value();
}

}  // namespace

ClockReading read_clock_offset(Communicator& communicator,
                               const std::function<std::int64_t()>& now_ns) {
  const std::int64_t begin_ns = now_ns();
  if (communicator.rank() == 0) {
    for (int rank = 1; rank < communicator.size(); ++rank) {
      for (bool is_last = false; !is_last;) {
        is_last = receive(communicator, rank) != 0;
        send(communicator, now_ns(), rank);
      }
    }
    return {.at_ns = begin_ns, .offset_ns = 0, .error_ns = 0};
  }
  ClockReading best{.error_ns = std::numeric_limits<std::int64_t>::max()};
  std::int64_t turn_ns = begin_ns;  // when rank 0 first answered
  bool is_last = false;
  for (int trip = 1; !is_last; ++trip) {
    const std::int64_t asked_ns = now_ns();
    is_last = trip >= kFewestTrips &&
              (best.error_ns <= kGoodError_ns || asked_ns - turn_ns > kLongest_ns);
    send(communicator, is_last ? 1 : 0, 0);
    const std::int64_t theirs_ns = receive(communicator, 0), got_ns = now_ns();
    if (trip == 1) turn_ns = got_ns;
    const std::int64_t half_ns = (got_ns - asked_ns + 1) / 2;
    if (half_ns >= best.error_ns) continue;
    const std::int64_t middle_ns = asked_ns + half_ns;
    best = {.at_ns = middle_ns, .offset_ns = middle_ns - theirs_ns, .error_ns = half_ns};
  }
  return best;
}

ClockLine::ClockLine(const ClockReading& first, const ClockReading& last) : first_(first) {
  const std::int64_t passed_ns = last.at_ns - first.at_ns;
  if (passed_ns <= 0) return;
  const double drift =
      static_cast<double>(last.offset_ns - first.offset_ns) / static_cast<double>(passed_ns);
  // Two readings at almost the same moment give a wrong drift, because neither is exact. The drift
  // is therefore limited to a value that no real clock reaches.
  constexpr double kMost = 0.01;
  drift_ = std::clamp(drift, -kMost, kMost);
}

std::int64_t ClockLine::to_rank_0(std::int64_t at_ns) const {
  const auto since_ns = static_cast<double>(at_ns - first_.at_ns);
  return at_ns - first_.offset_ns - std::llround(drift_ * since_ns);
}

}  // namespace dp
