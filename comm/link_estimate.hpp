// From observations of a link to its latency and rate: arithmetic alone, no clock and no network.
#pragma once

#include <cstdint>
#include <span>

namespace dp {

// So many bytes had come by then, in sum. Times are seconds of any clock.
struct Arrival {
  double at_s = 0.0;
  std::uint64_t bytes = 0;
};

// Bytes per second, and how far off it may be as a share of it: about two standard errors. 1 where
// nothing is known.
struct RateEstimate {
  double bytes_per_s = 0.0;
  double uncertainty = 1.0;
};

// The rate of a stream from the second half of its time, since TCP begins slowly: that half is cut
// into eight windows, and the mean of those in the middle half, by rate, is the estimate; so a
// window in which a processor was away does not count. The uncertainty covers how much windows
// differ and whether the stream still becomes faster or slower. Bytes are taken to have come
// steadily between two arrivals. Arrivals are in the order of time; fewer than kFewestArrivals in
// the second half tell nothing of the uncertainty.
inline constexpr std::size_t kFewestArrivals = 16;
[[nodiscard]] RateEstimate estimate_rate(std::span<const Arrival> arrivals);

// One way, from round trips of a small message: half of the shortest, as all that the two
// processors and a lost frame do makes a trip longer. 0 for none.
[[nodiscard]] double estimate_latency(std::span<const double> round_trips_s);

}  // namespace dp
