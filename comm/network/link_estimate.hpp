// Computes a link's latency and rate from observations: pure arithmetic without clock or network.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace dp {

// The number of bytes that had arrived by then, in total. Times are in seconds of any clock.
struct Arrival {
  double at_s = 0.0;
  std::uint64_t bytes = 0;
};

// The rates, in bytes per second, of the eight equal windows into which the second half of a
// stream's time is cut. The first half is left out, since TCP begins slowly. Between two arrivals,
// bytes are assumed to come steadily. Arrivals are in the order of time. All rates are 0 if fewer
// than kFewestArrivals came in the second half.
using WindowRates = std::array<double, 8>;
inline constexpr std::size_t kFewestArrivals = 8;
[[nodiscard]] WindowRates window_rates(std::span<const Arrival> arrivals);

// Bytes per second, and the uncertainty as a fraction of it: about two standard errors, or 1 if
// nothing is known.
struct RateEstimate {
  double bytes_per_s = 0.0;
  double uncertainty = 1.0;
};

// Estimates the rate of a link from one or more streams of equal length: the mean of all windows,
// because an exchange waits for slow moments, too. The uncertainty covers how much windows differ,
// how much streams differ, and whether a single stream still becomes faster or slower.
[[nodiscard]] RateEstimate estimate_rate(std::span<const WindowRates> streams);

// The latency of one way: half of the shortest round trip of a small message, because busy
// processors and lost frames only make a trip longer. 0 without round trips.
[[nodiscard]] double estimate_latency(std::span<const double> round_trips_s);

// The shortest round trips of three messages to an idle link and one byte back.
struct BurstTrips {
  double none_s = 0.0;   // of one byte
  double once_s = 0.0;   // of `bytes`
  double twice_s = 0.0;  // of twice as many
  double bytes = 0.0;
};

// The bytes that a link lets through at once after a pause. Of n bytes, n from the burst on, a trip
// takes none_s + (n - burst) / rate. 0 where the trips do not show the link's rate within a
// quarter, as with a burst of more than `bytes`, and where less than 0.3 ms is saved: looks at the
// network may be that late.
[[nodiscard]] double estimate_burst(const BurstTrips& trips, double bytes_per_s);

}  // namespace dp
