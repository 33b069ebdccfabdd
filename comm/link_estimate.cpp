#include "comm/link_estimate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace dp {
namespace {

// The number of bytes that had arrived at that time, which lies between the first and the last
// arrival.
double bytes_at(std::span<const Arrival> arrivals, double at_s) {
  const auto after = std::upper_bound(arrivals.begin(), arrivals.end(), at_s,
                                      [](double t, const Arrival& a) { return t < a.at_s; });
  if (after == arrivals.begin()) return static_cast<double>(arrivals.front().bytes);
  if (after == arrivals.end()) return static_cast<double>(arrivals.back().bytes);
  const Arrival &left = *(after - 1), &right = *after;
  const double share = (at_s - left.at_s) / (right.at_s - left.at_s);
  return static_cast<double>(left.bytes) + share * static_cast<double>(right.bytes - left.bytes);
}

}  // namespace

RateEstimate estimate_rate(std::span<const Arrival> arrivals) {
  constexpr std::size_t kWindows = 8;
  if (arrivals.size() < 2) return {};
  const double end_s = arrivals.back().at_s;
  const double begin_s = std::midpoint(arrivals.front().at_s, end_s);
  const double window_s = (end_s - begin_s) / kWindows;
  if (!(window_s > 0.0)) return {};
  std::array<double, kWindows> rates{};
  double before = bytes_at(arrivals, begin_s);
  for (std::size_t i = 0; i < kWindows; ++i) {
    const double until = bytes_at(arrivals, begin_s + static_cast<double>(i + 1) * window_s);
    rates[i] = (until - before) / window_s;
    before = until;
  }
  const auto half = rates.begin() + kWindows / 2;
  const double first = std::accumulate(rates.begin(), half, 0.0) / (kWindows / 2.0);
  const double second = std::accumulate(half, rates.end(), 0.0) / (kWindows / 2.0);
  const double mean = std::midpoint(first, second);
  double squares = 0.0;
  for (const double rate : rates) squares += (rate - mean) * (rate - mean);
  std::sort(rates.begin(), rates.end());
  RateEstimate estimate;
  estimate.bytes_per_s =
      std::accumulate(rates.begin() + kWindows / 4, rates.end() - kWindows / 4, 0.0) /
      (kWindows / 2.0);
  const auto steady = std::lower_bound(arrivals.begin(), arrivals.end(), begin_s,
                                       [](const Arrival& a, double t) { return a.at_s < t; });
  if (static_cast<std::size_t>(arrivals.end() - steady) < kFewestArrivals || mean <= 0.0) {
    return estimate;
  }
  const double error = std::sqrt(squares / (kWindows - 1.0) / kWindows);
  estimate.uncertainty =
      std::min(1.0, std::max(2.0 * error, 0.5 * std::abs(second - first)) / mean);
  return estimate;
}

double estimate_latency(std::span<const double> round_trips_s) {
  if (round_trips_s.empty()) return 0.0;
  return 0.5 * *std::min_element(round_trips_s.begin(), round_trips_s.end());
}

}  // namespace dp
