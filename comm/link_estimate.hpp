// Computes a link's latency and rate from observations: pure arithmetic without clock or network.
#pragma once

#include <cstdint>
#include <span>

namespace dp {

// The number of bytes that had arrived by then, in total. Times are in seconds of any clock.
struct Arrival {
  double at_s = 0.0;
  std::uint64_t bytes = 0;
};

// Bytes per second, and the uncertainty as a fraction of it: about two standard errors, or 1 if
// nothing is known.
struct RateEstimate {
  double bytes_per_s = 0.0;
  double uncertainty = 1.0;
};

// Estimates the rate of a stream from the second half of its time, since TCP begins slowly. This
// half is cut into eight windows. The estimate is the mean of the four windows whose rates are in
// the middle, so a window in which a processor was busy with something else does not count. The
// uncertainty covers how much windows differ and whether the stream still becomes faster or slower.
// Between two arrivals, bytes are assumed to come steadily. Arrivals are in the order of time. With
// fewer than kFewestArrivals in the second half the uncertainty is unknown.
inline constexpr std::size_t kFewestArrivals = 16;
[[nodiscard]] RateEstimate estimate_rate(std::span<const Arrival> arrivals);

// The latency of one way: half of the shortest round trip of a small message, because busy
// processors and lost frames only make a trip longer. 0 without round trips.
[[nodiscard]] double estimate_latency(std::span<const double> round_trips_s);

}  // namespace dp
