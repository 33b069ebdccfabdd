#include "comm/network/link_estimate.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace dp {
namespace {

// The number of bytes that had arrived by `at_s`, a time between the first and the last arrival.
double bytes_at(std::span<const Arrival> arrivals, double at_s) {
  const auto after = std::upper_bound(arrivals.begin(), arrivals.end(), at_s,
                                      [](double t, const Arrival& a) { return t < a.at_s; });
  if (after == arrivals.begin()) return static_cast<double>(arrivals.front().bytes);
  if (after == arrivals.end()) return static_cast<double>(arrivals.back().bytes);
  const Arrival &left = *(after - 1), &right = *after;
  const double share = (at_s - left.at_s) / (right.at_s - left.at_s);
  return static_cast<double>(left.bytes) + share * static_cast<double>(right.bytes - left.bytes);
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The standard error of the mean of at least two values.
double standard_error(std::span<const double> values) {
  const double center = mean(values), count = static_cast<double>(values.size());
  double squares = 0.0;
  for (const double value : values) squares += (value - center) * (value - center);
  return std::sqrt(squares / (count - 1.0) / count);
}

}  // namespace

WindowRates window_rates(std::span<const Arrival> arrivals) {
  WindowRates rates{};
  if (arrivals.empty()) return rates;
  const double end_s = arrivals.back().at_s;
  const double begin_s = std::midpoint(arrivals.front().at_s, end_s);
  const double window_s = (end_s - begin_s) / static_cast<double>(rates.size());
  const auto steady = std::lower_bound(arrivals.begin(), arrivals.end(), begin_s,
                                       [](const Arrival& a, double t) { return a.at_s < t; });
  if (static_cast<std::size_t>(arrivals.end() - steady) < kFewestArrivals) return rates;
  if (!(window_s > 0.0)) return rates;
  double before = bytes_at(arrivals, begin_s);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const double until = bytes_at(arrivals, begin_s + static_cast<double>(i + 1) * window_s);
    rates[i] = (until - before) / window_s;
    before = until;
  }
  return rates;
}

RateEstimate estimate_rate(std::span<const WindowRates> streams) {
  std::vector<double> windows, means;
  for (const WindowRates& rates : streams) {
    windows.insert(windows.end(), rates.begin(), rates.end());
    means.push_back(mean(rates));
  }
  if (windows.empty()) return {};
  const double rate = mean(windows);
  if (!(rate > 0.0)) return {};
  double error = 2.0 * standard_error(windows);
  if (means.size() == 1) {
    const std::span<const double> all(windows);
    const double first = mean(all.first(all.size() / 2)), second = mean(all.last(all.size() / 2));
    error = std::max(error, 0.5 * std::abs(second - first));
  } else {
    error = std::max(error, 2.0 * standard_error(means));
  }
  return {.bytes_per_s = rate, .uncertainty = std::min(1.0, error / rate)};
}

double estimate_latency(std::span<const double> round_trips_s) {
  if (round_trips_s.empty()) return 0.0;
  return 0.5 * *std::min_element(round_trips_s.begin(), round_trips_s.end());
}

double estimate_burst(const BurstTrips& trips, double bytes_per_s) {
  constexpr double kClearly = 1.25, kNoise_s = 0.3e-3;
  const double per_bytes_s = trips.twice_s - trips.once_s;
  if (per_bytes_s * bytes_per_s * kClearly < trips.bytes ||
      per_bytes_s * bytes_per_s > kClearly * trips.bytes) {
    return 0.0;
  }
  const double saved_s = trips.none_s + per_bytes_s - trips.once_s;
  return saved_s > kNoise_s ? saved_s * bytes_per_s : 0.0;
}

}  // namespace dp
