// Rate and latency from observations that are made up here: what is known goes in, and must come
// out.
#include "comm/network/link_estimate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "kernels/base/random.hpp"

namespace dp {
namespace {

constexpr double kRate = 12e6;  // bytes per second
constexpr std::uint64_t kMessage = 65536;

// Messages over a link that carries rate(t) bytes per second at time t, for so long; the receiver
// sees each when it next looks: look(when it has come) is not before.
std::vector<Arrival> stream(
    double seconds, const std::function<double(double)>& rate,
    const std::function<double(double)>& look = [](double t) { return t; }) {
  std::vector<Arrival> arrivals;
  std::uint64_t bytes = 0;
  for (double t = 5.0; t < 5.0 + seconds;) {
    t += static_cast<double>(kMessage) / rate(t - 5.0);
    const double seen = look(t - 5.0) + 5.0;
    arrivals.push_back(
        {arrivals.empty() ? seen : std::max(seen, arrivals.back().at_s), bytes += kMessage});
  }
  return arrivals;
}
double steady(double) { return kRate; }

// The estimate from one or several streams.
template <typename... Streams>
RateEstimate estimate(const Streams&... streams) {
  const std::vector<WindowRates> windows = {window_rates(streams)...};
  return estimate_rate(windows);
}

TEST(LinkEstimate, ASteadyStream) {
  const RateEstimate one = estimate(stream(0.5, steady));
  EXPECT_NEAR(one.bytes_per_s, kRate, 1e-6 * kRate);
  EXPECT_LT(one.uncertainty, 1e-6);
  EXPECT_LT(estimate(stream(0.5, steady), stream(0.5, steady)).uncertainty, 1e-6);
}

TEST(LinkEstimate, NothingIsKnownOfFewMessages) {
  EXPECT_EQ(estimate_rate({}).bytes_per_s, 0.0);
  EXPECT_EQ(estimate_rate({}).uncertainty, 1.0);
  const std::vector<Arrival> none, one = {{1.0, 100}}, at_once = {{1.0, 100}, {1.0, 200}};
  EXPECT_EQ(estimate(none).uncertainty, 1.0);
  EXPECT_EQ(estimate(one).uncertainty, 1.0);
  EXPECT_EQ(estimate(at_once).uncertainty, 1.0);
  // 60 kB/s: eight messages in the second half take 8.8 s.
  EXPECT_EQ(estimate(stream(10.0, [](double) { return 6e4; })).uncertainty, 1.0);
  EXPECT_NEAR(estimate(stream(20.0, [](double) { return 6e4; })).bytes_per_s, 6e4, 60.0);
}

// A round trip of 200 ms: the rate doubles in each until the link is full, after 1.4 s.
TEST(LinkEstimate, SlowStartIsDiscarded) {
  const auto slow_start = [](double t) { return std::min(kRate, 1e5 * std::exp2(t / 0.2)); };
  const RateEstimate after = estimate(stream(3.0, slow_start));
  EXPECT_NEAR(after.bytes_per_s, kRate, 0.01 * kRate);
  EXPECT_LT(after.uncertainty, 0.01);
  EXPECT_GT(estimate(stream(1.4, slow_start)).uncertainty, 0.2) << "still growing";
}

TEST(LinkEstimate, AReceiverThatLooksNowAndThen) {
  const CounterRng rng(1, RandomStream::test, 0, 0);
  std::uint64_t draw = 0;
  const auto late = [&](double t) { return t + 3e-3 * rng.uniform(draw++); };
  const RateEstimate seen = estimate(stream(1.0, steady, late));
  EXPECT_NEAR(seen.bytes_per_s, kRate, 0.02 * kRate);
  EXPECT_LT(seen.uncertainty, 0.05);
}

// An exchange waits for slow moments, too, so they count; and one of many is soon a small part.
TEST(LinkEstimate, ASlowMomentIsTold) {
  const auto away = [](double t) { return t > 0.8 && t < 0.86 ? 1e6 : kRate; };
  const auto once = stream(1.0, away), well = stream(1.0, steady);
  const RateEstimate first = estimate(once), more = estimate(once, well, well, well, well, well);
  EXPECT_NEAR(first.bytes_per_s, kRate * (1.0 - 0.06 / 0.5), 0.03 * kRate);
  EXPECT_GT(first.uncertainty, 0.1);
  EXPECT_NEAR(more.bytes_per_s, kRate, 0.03 * kRate);
  EXPECT_LT(more.uncertainty, first.uncertainty / 2);
}

// Each stream is as steady as can be, and at half of the other's rate.
TEST(LinkEstimate, StreamsThatDifferAreUncertain) {
  const auto half = [](double) { return kRate / 2; };
  const RateEstimate both = estimate(stream(1.0, steady), stream(1.0, half));
  EXPECT_NEAR(both.bytes_per_s, 0.75 * kRate, 0.01 * kRate);
  EXPECT_GT(both.uncertainty, 0.3);
  EXPECT_LE(both.uncertainty, 1.0);
}

// TCP's saw: from half of the rate to all of it, again and again.
TEST(LinkEstimate, TheMeanOfASaw) {
  const auto saw = [](double period) {
    return [period](double t) { return kRate * (0.5 + 0.5 * std::fmod(t, period) / period); };
  };
  EXPECT_NEAR(estimate(stream(4.0, saw(0.05))).bytes_per_s, 0.75 * kRate, 0.03 * kRate);
  EXPECT_LT(estimate(stream(4.0, saw(0.05))).uncertainty, 0.05);
  EXPECT_GT(estimate(stream(4.0, saw(2.5))).uncertainty, 0.1) << "a part of one tooth";
}

TEST(LinkEstimate, ARateThatFallsIsNoSteadyOne) {
  const auto falls = [](double t) { return kRate / (1.0 + t); };
  EXPECT_GT(estimate(stream(4.0, falls)).uncertainty, 0.1);
}

TEST(LinkEstimate, LatencyIsHalfOfTheShortestTrip) {
  EXPECT_EQ(estimate_latency({}), 0.0);
  // The first opens the connection; a frame of one is lost; a processor is busy.
  const std::vector<double> trips = {0.081, 0.0204, 0.0201, 0.2204, 0.0236, 0.0202};
  EXPECT_DOUBLE_EQ(estimate_latency(trips), 0.01005);
}

// Trips over a link that lets `burst` bytes pass at once; looks are late by `late_s`.
double burst_found(double burst, double late_s = 0.0, double rate = kRate) {
  constexpr double kLatency_s = 2e-3, kBytes = 100e3;
  const auto trip_s = [&](double bytes) {
    return 2 * kLatency_s + std::max(0.0, bytes - burst) / rate + late_s;
  };
  return estimate_burst({.none_s = 2 * kLatency_s,
                         .once_s = trip_s(kBytes),
                         .twice_s = trip_s(2 * kBytes),
                         .bytes = kBytes},
                        kRate);
}

TEST(Burst, IsWhatPassesAtOnce) {
  EXPECT_EQ(burst_found(0.0), 0.0);
  EXPECT_NEAR(burst_found(15e3), 15e3, 1.0);
  EXPECT_NEAR(burst_found(90e3), 90e3, 1.0);
  // Late looks make it seem smaller, and nothing of one that is smaller than they are.
  EXPECT_NEAR(burst_found(15e3, 0.2e-3), 15e3 - 0.2e-3 * kRate, 1.0);
  EXPECT_EQ(burst_found(0.25e-3 * kRate), 0.0);
  EXPECT_EQ(burst_found(0.0, 1e-3), 0.0);
}

TEST(Burst, IsNoneWhereTheTripsDoNotShowTheLinksRate) {
  EXPECT_EQ(burst_found(150e3), 0.0);
  EXPECT_NEAR(burst_found(15e3, 0.0, 1.1 * kRate), 15e3 / 1.1, 1.0);
  EXPECT_EQ(burst_found(15e3, 0.0, 1.3 * kRate), 0.0);
  EXPECT_EQ(burst_found(15e3, 0.0, 0.7 * kRate), 0.0);
  EXPECT_EQ(estimate_burst({.bytes = 100e3}, kRate), 0.0);  // a rank that has measured nothing
}

}  // namespace
}  // namespace dp
