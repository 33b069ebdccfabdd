// The simulated step, against cases that are worked out by hand: the processor costs nothing unless
// a test says so, ports carry 1 MB/s, and times are exact.
#include "comm/network/step_simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "comm/exchange/segment_exchange.hpp"
#include "comm/mpi/look_pace.hpp"

namespace dp {
namespace {

constexpr double kRate = 1e6;

StepSetup setup_of(const std::string& topology, std::size_t ranks,
                   const std::vector<std::size_t>& elements, double latency_s = 0.0) {
  StepSetup setup;
  for (const std::size_t n : elements) setup.buckets.push_back({.sums = {{.elements = n}}});
  setup.topology = &find_topology(topology);
  setup.ports = NetworkPorts::alike(ranks, kRate, latency_s);
  for (std::size_t rank = 0; rank < ranks; ++rank) setup.hosts.push_back(static_cast<int>(rank));
  return setup;
}

// The same times on all ranks.
StepForecast simulate(const StepSetup& setup, const ComputeTimes& times, std::size_t steps = 1) {
  const std::vector all(steps, std::vector(setup.hosts.size(), times));
  return simulate_steps(setup, all);
}
StepForecast simulate(const StepSetup& setup) {
  return simulate(setup, {.ready_s = std::vector(setup.buckets.size(), 0.0)});
}

// Seconds of a message of so many floats on a port.
double message_s(std::size_t floats) {
  return static_cast<double>(floats * sizeof(float) + kMessageFrameBytes) / kRate;
}

TEST(StepSimulation, OneBucketGoesThereAndBack) {
  for (const char* topology : {"ring", "direct"}) {
    // Two ranks: a half as a partial sum, then a half as a total.
    EXPECT_NEAR(simulate(setup_of(topology, 2, {2000})).delivered_s[0], 2 * message_s(1000), 1e-12);
    EXPECT_NEAR(simulate(setup_of(topology, 2, {2000}, 0.02)).delivered_s[0],
                2 * message_s(1000) + 2 * 0.02, 1e-12);
  }
  // 2(P-1) messages one after the other, each over a free link.
  EXPECT_NEAR(simulate(setup_of("ring", 4, {4000}, 0.02)).delivered_s[0],
              6 * (message_s(1000) + 0.02), 1e-12);
}

// There are two buckets: one is ready 30 ms before backward ends, the other at its end.
TEST(StepSimulation, AnExchangeIsInFlightFromItsFirstBucketOn) {
  const StepSetup setup = setup_of("direct", 2, {2000, 2000}, 0.02);
  const StepForecast forecast = simulate(setup, {.ready_s = {0.1, 0.13}, .backward_end_s = 0.13});
  EXPECT_NEAR(forecast.in_flight_s, forecast.delivered_s[1] - 0.1, 1e-9);
  EXPECT_NEAR(forecast.exposed_s, forecast.delivered_s[1] - 0.13, 1e-9);
  EXPECT_GT(forecast.exposed_s, 0.04);
}

TEST(StepSimulation, FlowsOfDirectShareThePorts) {
  // Each port sends 2 messages and receives 2, at half of its rate each.
  EXPECT_NEAR(simulate(setup_of("direct", 3, {3000}, 0.02)).delivered_s[0],
              2 * (2 * message_s(1000) + 0.02), 1e-9);
  // The same bytes as on the ring, and the same time where there is no latency.
  EXPECT_NEAR(simulate(setup_of("direct", 8, {8000})).delivered_s[0],
              simulate(setup_of("ring", 8, {8000})).delivered_s[0], 1e-9);
}

// The first quarter of each bucket needs five times the bytes of the others. With as many buckets
// as ranks each rank owns it once.
TEST(StepSimulation, OwnersOfDirectTakeTurns) {
  const auto most_to_mean = [](std::size_t buckets) {
    StepSetup setup = setup_of("direct", 4, std::vector<std::size_t>(buckets, 4000));
    for (SimulatedBucket& bucket : setup.buckets) {
      bucket.sums[0].costs.payload_bytes = [](std::size_t begin, std::size_t floats) {
        return static_cast<double>(floats) * (begin < 1000 ? 5.0 : 1.0);
      };
    }
    const StepForecast forecast = simulate(setup);
    return forecast.most_sent_bytes / forecast.sent_bytes;
  };
  EXPECT_GT(most_to_mean(1), 1.4);
  EXPECT_LT(most_to_mean(2), most_to_mean(1));
  EXPECT_NEAR(most_to_mean(4), 1.0, 1e-9);
  EXPECT_NEAR(most_to_mean(8), 1.0, 1e-9);
}

// The others send it their values, and get sums from owners alone. Ring has no owners.
TEST(StepSimulation, ASlowLinksRankOwnsNothing) {
  StepSetup setup = setup_of("direct", 4, std::vector<std::size_t>(16, 12000));
  setup.ports.send_bytes_per_s[3] = setup.ports.receive_bytes_per_s[3] = kRate / 10;
  const double even_s = simulate(setup).delivered_s.back();
  setup.owner_weights = {1, 1, 1, 0};
  // Its link carries each bucket once in each direction, instead of 1.5 times.
  const double slow_s = 16 * 10 * 3 * message_s(4000);
  EXPECT_NEAR(simulate(setup).delivered_s.back(), slow_s, 0.1 * slow_s);
  EXPECT_NEAR(even_s, 1.5 * slow_s, 0.1 * slow_s);
  setup.topology = &find_topology("ring");
  const double ring_s = simulate(setup).delivered_s.back();
  setup.owner_weights = {};
  EXPECT_EQ(simulate(setup).delivered_s.back(), ring_s);
}

// Four ranks encode 1000 floats for a second each: at once, or by turns of two.
TEST(StepSimulation, RanksMayShareCores) {
  StepSetup setup = setup_of("direct", 4, {4000});
  setup.ports = NetworkPorts::alike(4, 1e12, 0.0);
  setup.buckets[0].sums[0].costs.encode_s_per_float = 1e-3;
  const double own_s = simulate(setup).delivered_s[0];
  setup.shared_cores = 4;
  EXPECT_EQ(simulate(setup).delivered_s[0], own_s);
  setup.shared_cores = 2;
  EXPECT_NEAR(simulate(setup).delivered_s[0], 2 * own_s, 0.3 * own_s);
  setup.shared_cores = 1;
  EXPECT_NEAR(simulate(setup).delivered_s[0], 4 * own_s, 0.6 * own_s);
}

TEST(StepSimulation, AServersPortCarriesAll) {
  EXPECT_NEAR(simulate(setup_of("ps", 4, {1000})).delivered_s[0],
              3 * message_s(1000) + 3 * message_s(1000) * 3 / 4, 1e-9);
}

TEST(StepSimulation, ATreeGoesUpAndDown) {
  // 1 -> 0 and 3 -> 2, then 2 -> 0, then 0 -> 2 and 0 -> 1 at half of the rate, then 2 -> 3. Rank 0
  // has the sum after two messages, ranks 1 and 2 after four, rank 3 after five.
  EXPECT_NEAR(simulate(setup_of("tree", 4, {1000})).delivered_s[0],
              (2 + 4 + 4 + 5) * message_s(1000) / 4, 1e-9);
}

TEST(StepSimulation, RanksOfAHostUseNoPort) {
  StepSetup setup = setup_of("hierarchical", 4, {2000});
  setup.hosts = {0, 0, 1, 1};
  setup.ports = NetworkPorts::alike(2, kRate, 0.0);
  // Two leaders, each of which sends a half twice.
  EXPECT_NEAR(simulate(setup).delivered_s[0], 2 * message_s(1000), 1e-9);
  setup.hosts = {0, 0, 0, 0};
  EXPECT_EQ(simulate(setup).delivered_s[0], 0.0);
}

TEST(StepSimulation, SegmentsKeepTheLinkBusy) {
  for (const char* topology : {"ring", "direct"}) {
    for (const std::size_t ranks : {2, 3, 4}) {
      StepSetup setup = setup_of(topology, ranks, {ranks * 16 * 1000});
      setup.buckets[0].sums[0].segment = 800;  // at most 1000
      const double busy_s = 2.0 * static_cast<double>(ranks - 1) * 16 * message_s(1000);
      EXPECT_NEAR(simulate(setup).delivered_s[0], busy_s, 2 * message_s(1000)) << topology << ranks;
    }
  }
  // Two ranks have nothing to wait for.
  StepSetup setup = setup_of("ring", 2, {2 * 16 * 1000});
  setup.buckets[0].sums[0].segment = 800;  // at most 1000
  EXPECT_NEAR(simulate(setup).delivered_s[0], 2 * 16 * message_s(1000), 1e-9);
  // A window of one message waits for each answer.
  setup.window = 1;
  setup.ports.latency_s = 0.02;
  EXPECT_GT(simulate(setup).delivered_s[0], 2 * 16 * message_s(1000) + 15 * 0.02);
}

TEST(StepSimulation, BucketsFollowEachOtherOnTheLink) {
  const StepSetup setup = setup_of("ring", 2, {2000, 2000});
  const double alone_s = 2 * message_s(1000);
  const StepForecast forecast = simulate(
      setup, {.ready_s = {0.0, 0.75 * alone_s}, .backward_end_s = 1.2 * alone_s, .after_s = 0.1});
  EXPECT_NEAR(forecast.delivered_s[0], alone_s, 1e-12);
  EXPECT_NEAR(forecast.delivered_s[1], 2 * alone_s, 1e-12);
  EXPECT_NEAR(forecast.exposed_s, 0.8 * alone_s, 1e-12);
  EXPECT_NEAR(forecast.step_s, 2 * alone_s + 0.1, 1e-12);
  // All of it behind backward.
  const StepForecast hidden =
      simulate(setup, {.ready_s = {0.0, 0.75 * alone_s}, .backward_end_s = 3 * alone_s}, 3);
  EXPECT_EQ(hidden.exposed_s, 0.0);
  EXPECT_NEAR(hidden.step_s, 3 * alone_s, 1e-12);
}

TEST(StepSimulation, ABucketWaitsForTheOneBeforeItAndForBuffers) {
  const double alone_s = 2 * message_s(1000);
  StepSetup setup = setup_of("ring", 2, {2000, 2000});
  const StepForecast in_order = simulate(setup, {.ready_s = {alone_s, 0.0}});
  // Both partial sums go before both totals.
  EXPECT_NEAR(in_order.delivered_s[0], 2.5 * alone_s, 1e-12);
  EXPECT_NEAR(in_order.delivered_s[1], 3 * alone_s, 1e-12);
  // One after the other pays both latencies twice; both at once share them.
  setup.ports.latency_s = 1.0;
  EXPECT_NEAR(simulate(setup).delivered_s[1], 3 * message_s(1000) + 2.0, 1e-12);
  setup.buckets_in_flight = 1;
  EXPECT_NEAR(simulate(setup).delivered_s[1], 2 * alone_s + 4.0, 1e-9);
}

TEST(StepSimulation, CodecsCostTime) {
  StepSetup setup = setup_of("ring", 2, {2000});
  CodecCosts& costs = setup.buckets[0].sums[0].costs;
  costs = {.encode_s_per_float = 3e-6,
           .decode_s_per_float = 1e-6,
           .payload_bytes = [](std::size_t, std::size_t floats) {
             return static_cast<double>(floats) / 2;
           }};
  // Encode; add, encode the total, decode it; decode: 2 encodes and 3 decodes of 1,000 floats.
  const double codec_s = 2 * 3e-3 + 3 * 1e-3, wire_s = 2 * (500 + 20) / kRate;
  EXPECT_NEAR(simulate(setup).delivered_s[0], codec_s + wire_s, 1e-12);
  // Four messages sent or taken.
  setup.message_s = 1e-4;
  setup.byte_s = 1e-8;
  EXPECT_NEAR(simulate(setup).delivered_s[0], codec_s + wire_s + 4 * (1e-4 + 520 * 1e-8), 1e-12);
}

TEST(StepSimulation, TheThreadTakesTimeFromTheComputation) {
  StepSetup setup = setup_of("ring", 2, {2000});
  setup.buckets[0].sums[0].costs.encode_s_per_float = 1e-6;
  setup.stolen = 0.5;
  const StepForecast forecast = simulate(setup, {.ready_s = {0.0}, .backward_end_s = 1.0});
  EXPECT_NEAR(forecast.backward_end_s, 1.0 + 0.5 * 2 * 1e-3, 1e-12);
  // It also makes later buckets ready later.
  setup.buckets.push_back(setup.buckets[0]);
  const StepForecast two = simulate(setup, {.ready_s = {0.0, 0.5}, .backward_end_s = 1.0});
  const double alone_s = 2 * message_s(1000) + 2 * 1e-3;
  EXPECT_NEAR(two.delivered_s[1], 0.5 + 0.5 * 2e-3 + alone_s, 1e-12);
  EXPECT_NEAR(two.backward_end_s, 1.0 + 0.5 * 4e-3, 1e-12);
}

TEST(StepSimulation, TwoSumsFollowEachOther) {
  StepSetup setup = setup_of("ring", 2, {});
  setup.buckets = {
      {.sums = {{.elements = 2000, .before_s = 0.5}, {.elements = 1000, .before_s = 0.25}},
       .after_s = 0.125}};
  EXPECT_NEAR(simulate(setup).delivered_s[0],
              0.5 + 2 * message_s(1000) + 0.25 + 2 * message_s(500) + 0.125, 1e-12);
}

TEST(StepSimulation, TheSlowestPortAndTheSlowestRankDecide) {
  StepSetup setup = setup_of("ring", 2, {2000});
  setup.ports.send_bytes_per_s[1] = kRate / 4;
  // Rank 1's messages take four times as long: rank 0 has both after 8, and rank 1 gets its second
  // one after 5.
  EXPECT_NEAR(simulate(setup).delivered_s[0], 6.5 * message_s(1000), 1e-12);
  // Rank 1 computes longer: rank 0 waits, and both begin the next step together.
  const StepSetup even = setup_of("ring", 2, {2000});
  const std::vector<ComputeTimes> ranks = {{.ready_s = {1.0}, .backward_end_s = 1.0},
                                           {.ready_s = {3.0}, .backward_end_s = 3.0}};
  const std::vector steps(4, ranks);
  const StepForecast forecast = simulate_steps(even, steps);
  EXPECT_NEAR(forecast.step_s, 3.0 + 2 * message_s(1000), 1e-9);
  EXPECT_NEAR(forecast.exposed_s, 1.0 + 2 * message_s(1000), 1e-9);
}

// A port sends its burst at once, and gathers it again while it waits for the other rank's half.
TEST(StepSimulation, BurstsPassAtOnce) {
  constexpr double kLatency_s = 1e-3, kGathered = kLatency_s * kRate;
  StepSetup setup = setup_of("ring", 2, {2000}, kLatency_s);
  const double without_s = 2 * (message_s(1000) + kLatency_s);
  EXPECT_NEAR(simulate(setup).step_s, without_s, 1e-12);
  setup.ports.burst_bytes = 1.5 * kGathered;
  EXPECT_NEAR(simulate(setup).step_s, without_s - 2.5 * kGathered / kRate, 1e-12);
  // The next step begins with a whole one.
  const ComputeTimes times = {.ready_s = {0.0}, .after_s = 0.1};
  EXPECT_NEAR(simulate(setup, times, 3).step_s, 0.1 + without_s - 2.5 * kGathered / kRate, 1e-9);
  setup.ports.burst_bytes = 1e6;
  EXPECT_NEAR(simulate(setup).step_s, 2 * kLatency_s, 1e-12);
  // Messages of one port have one burst between them.
  StepSetup direct = setup_of("direct", 3, {3000});
  const double direct_s = simulate(direct).step_s;
  direct.ports.burst_bytes = 1000;
  EXPECT_NEAR(simulate(direct).step_s, direct_s - 1000 / kRate, 1e-9);
}

// They take time on the wire, and are not counted as sent.
TEST(StepSimulation, MessagesHaveHeadersOfTheTransport) {
  StepSetup setup = setup_of("ring", 2, {2000});
  const StepForecast without = simulate(setup);
  setup.message_bytes = 100;
  const StepForecast with = simulate(setup);
  EXPECT_NEAR(with.step_s, without.step_s + 2 * 100 / kRate, 1e-12);
  EXPECT_EQ(with.sent_bytes, without.sent_bytes);
}

TEST(FluidNetwork, AReceivingPortLetsOneBurstPass) {
  NetworkPorts ports = NetworkPorts::alike(4, kRate, 0.0);
  ports.burst_bytes = 1000;
  FluidNetwork network(ports, {0, 1, 2, 3});
  for (const std::size_t from : {1, 2, 3})
    network.send(0.0, {.from = from, .to = 0, .bytes = 4000});
  double last_s = 0.0;
  for (int i = 0; i < 3; ++i) last_s = network.take(1.0)->left_s;
  EXPECT_NEAR(last_s, (3 * 4000 - 1000) / kRate, 1e-12);
  EXPECT_FALSE(network.take(1.0));
}

// An event comes at a random time of a nap, so that steps of the same times differ; but every
// simulation is the same.
TEST(StepSimulation, NapsMakeEventsLate) {
  const ComputeTimes times = {.ready_s = {0.0}, .after_s = 0.1};
  StepSetup setup = setup_of("ring", 8, {200'000});
  const double at_once_s = simulate(setup, times).step_s;
  EXPECT_NEAR(simulate(setup, times, 5).step_s, at_once_s, 1e-9);
  setup.sleeps = true;
  std::vector<double> late_s;
  for (const std::size_t steps : {20, 21, 22}) {
    const double mean_s = simulate(setup, times, steps).step_s;
    EXPECT_EQ(mean_s, simulate(setup, times, steps).step_s);
    late_s.push_back(mean_s - at_once_s);
  }
  // 14 events, one after the other. On a ring the later of two messages counts.
  for (const double each_s : late_s) {
    EXPECT_GT(each_s, 14 * LookPace::kWakeUp_s);
    EXPECT_LT(each_s, 14 * (LookPace::kWakeUp_s + LookPace::kMost_s));
  }
  EXPECT_NE(late_s[0], late_s[1]);
  EXPECT_NE(late_s[1], late_s[2]);
}

// With costs of processor and pauses nothing gets faster, and every exchange ends.
TEST(StepSimulation, PausesOnlyDelay) {
  for (const Topology& topology : topology_list()) {
    StepSetup setup = setup_of(std::string(topology.name), 5, {70'000, 10, 3000}, 1e-3);
    for (SimulatedBucket& bucket : setup.buckets) bucket.sums[0].segment = 2048;
    const ComputeTimes times = {.ready_s = {0.01, 0.03, 0.02}, .backward_end_s = 0.04};
    const double at_once_s = simulate(setup, times).step_s;
    setup.sleeps = true;
    const double with_pauses_s = simulate(setup, times).step_s;
    EXPECT_GE(with_pauses_s, 0.999 * at_once_s) << topology.name;
    EXPECT_LE(with_pauses_s, 1.5 * at_once_s) << topology.name;
  }
}

TEST(StepSimulation, BytesAreThoseOfTheTopologysFormula) {
  const auto codec = make_codec(parse_codec_spec("q8"));
  for (const Topology& topology : topology_list()) {
    for (const std::size_t ranks : {1, 2, 3, 5, 8}) {
      StepSetup setup = setup_of(std::string(topology.name), ranks, {100'000, 7});
      double most = 0.0, all = 0.0;
      for (SimulatedBucket& bucket : setup.buckets) {
        bucket.sums[0].segment = 4096;
        bucket.sums[0].costs.payload_bytes = [&](std::size_t, std::size_t floats) {
          return static_cast<double>(*codec->fixed_payload_bytes(floats));
        };
      }
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        double mine = 0.0;
        for (std::size_t b = 0; b < setup.buckets.size(); ++b) {
          const ExchangeShape shape = {.elements = setup.buckets[b].sums[0].elements,
                                       .ranks = ranks,
                                       .segment = 4096,
                                       .turn = b};
          mine += static_cast<double>(topology.wire_bytes(shape, setup.hosts, rank, *codec));
        }
        all += mine;
        most = std::max(most, mine);
      }
      const StepForecast forecast = simulate(setup);
      EXPECT_NEAR(forecast.sent_bytes, all / static_cast<double>(ranks), 1e-6)
          << topology.name << ranks;
      EXPECT_NEAR(forecast.most_sent_bytes, most, 1e-6) << topology.name << ranks;
    }
  }
}

}  // namespace
}  // namespace dp
