// Computes a link's latency and rate from observations: pure arithmetic without clock or network.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace dp {

// The total number of bytes that had arrived by `at_s`. Times are in seconds on any clock.
struct Arrival {
  double at_s = 0.0;
  std::uint64_t bytes = 0;
};

// The rates, in bytes per second, of eight equal windows in the second half of a stream's time. The
// first half is left out, since TCP begins slowly. Bytes are assumed to arrive steadily between two
// arrivals. `arrivals` must be sorted by time. All rates are 0 if there are fewer than
// kFewestArrivals arrivals in the second half.
using WindowRates = std::array<double, 8>;
inline constexpr std::size_t kFewestArrivals = 8;
[[nodiscard]] WindowRates window_rates(std::span<const Arrival> arrivals);

// A rate and its uncertainty as a fraction of the rate: about two standard errors, or 1 if nothing
// is known.
struct RateEstimate {
  double bytes_per_s = 0.0;
  double uncertainty = 1.0;
};

// Estimates the rate of a link from one or more streams of equal length: the mean of all windows,
// including slow ones, because an exchange has to wait in slow moments, too. The uncertainty covers
// the spread of windows, the spread of streams, and the trend within a single stream.
[[nodiscard]] RateEstimate estimate_rate(std::span<const WindowRates> streams);

// The one-way latency: half of the shortest round trip of a small message. The shortest one counts,
// because busy processors and lost frames can only make a trip longer. 0 without round trips.
[[nodiscard]] double estimate_latency(std::span<const double> round_trips_s);

// The shortest round trips over an idle link with messages of three sizes, each answered by one
// byte.
struct BurstTrips {
  double none_s = 0.0;   // of one byte
  double once_s = 0.0;   // of `bytes`
  double twice_s = 0.0;  // of twice as many bytes
  double bytes = 0.0;
};

// The bytes that a link lets through at once after a pause (*burst*). A trip of n >= burst bytes
// takes none_s + (n - burst) / rate. The result is 0 if the rate that follows from the trips
// differs from the link's rate by more than a quarter, for example because the burst is longer than
// `bytes`. The result is also 0 if the burst saves less than 0.3 ms, because polls of the network
// may be that late.
[[nodiscard]] double estimate_burst(const BurstTrips& trips, double bytes_per_s);

}  // namespace dp
