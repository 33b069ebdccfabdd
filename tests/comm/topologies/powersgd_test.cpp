// PowerSGD's exchange against algorithm 1 in double, and what it promises: conservation, equal
// bits, exact bytes, input that is not finite.
#include "comm/topologies/powersgd.hpp"

#include <gtest/gtest.h>

#include <Eigen/QR>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>

#include "comm/topologies/topology.hpp"
#include "tests/comm/exchange/exchange_fixture.hpp"
#include "tests/support/skipped.hpp"
#include "tests/support/state_list.hpp"

namespace dp {
namespace {

using namespace testing_support;

struct Layer {
  std::size_t rows, columns;
};

std::vector<TensorSlot> slots_of(const std::vector<Layer>& layers) {
  std::vector<TensorSlot> slots;
  std::size_t offset = 1000;  // the bucket need not be the gradient's first
  for (const Layer& layer : layers) {
    slots.push_back({offset, layer.rows, layer.columns, false});
    offset += layer.rows * layer.columns;
  }
  return slots;
}

// The Q factors, all that goes from step to step beside the residual.
std::span<float> state_of(Exchange& exchange) {
  StateList list;
  exchange.list_state("", list);
  return test::floats_of(list, "q");
}

std::size_t floats_of(const std::vector<Layer>& layers) {
  std::size_t floats = 0;
  for (const Layer& layer : layers) floats += layer.rows * layer.columns;
  return floats;
}

struct Options {
  bool has_feedback = true;
  std::uint32_t bucket = 0;
  std::size_t segment = 64;
  const char* topology = "ring";
};

// One bucket of matrices on one rank; two ranks a host.
struct PowerBench {
  PowerBench(Communicator& communicator, std::vector<Layer> matrices, std::size_t r,
             const Options& chosen = {})
      : comm(communicator),
        transport(communicator),
        layers(std::move(matrices)),
        slots(slots_of(layers)),
        plan(plan_powersgd(slots, r)),
        options(chosen),
        topology(find_topology(options.topology)),
        codec(make_codec(parse_codec_spec("none"))),
        gradient(floats_of(layers)),
        residual(options.has_feedback ? gradient.size() : 0) {
    for (int rank = 0; rank < comm.size(); ++rank) hosts.push_back(rank / 2);
    exchange =
        make_powersgd({.exchange = {.transport = &transport,
                                    .bucket = options.bucket,
                                    .stream = 2 * options.bucket,
                                    .offset = 1000,
                                    .gradient = gradient,
                                    .residual = options.has_feedback ? residual.data() : nullptr,
                                    .codec = codec.get(),
                                    .seed = 1,
                                    .segment = options.segment,
                                    .hosts = hosts},
                       .tensors = slots,
                       .factor_rank = r,
                       .topology = &topology});
    buffers.emplace(exchange->needs());
    comm.barrier();
  }

  void run(std::uint64_t step, const std::function<void()>& between = {}) {
    exchange->post_receives(*buffers, step);
    exchange->start();
    while (!exchange->done()) {
      if (!exchange->progress()) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      if (between) between();
    }
  }
  void fill(std::uint64_t step) {
    fill_normal(gradient, 100 * step + static_cast<std::uint64_t>(comm.rank()));
  }
  [[nodiscard]] std::uint64_t wire_bytes() const {
    const auto p = static_cast<std::size_t>(comm.size());
    const auto rank = static_cast<std::size_t>(comm.rank());
    std::uint64_t bytes = 0;
    for (const std::size_t floats : {plan.first_floats, plan.second_floats}) {
      const ExchangeShape shape = {
          .elements = floats, .ranks = p, .segment = options.segment, .turn = options.bucket};
      bytes += topology.wire_bytes(shape, hosts, rank, *codec);
    }
    return bytes;
  }

  Communicator& comm;
  MpiTransport transport;
  std::vector<Layer> layers;
  std::vector<TensorSlot> slots;
  PowerSgdPlan plan;
  Options options;
  const Topology& topology;
  std::unique_ptr<Codec> codec;
  std::vector<float> gradient, residual;
  std::vector<int> hosts;
  std::unique_ptr<Exchange> exchange;
  std::optional<BufferSet> buffers;
};

// Three that are factored at ranks up to 4, one of one column, one too small.
const std::vector<Layer> kLayers = {{16, 27}, {20, 1}, {33, 50}, {3, 4}, {12, 64}};

std::vector<double> plus(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<double> sum(a.begin(), a.end());
  for (std::size_t i = 0; i < b.size(); ++i) sum[i] += static_cast<double>(b[i]);
  return sum;
}

double norm(const std::vector<double>& v) {
  double squares = 0.0;
  for (const double x : v) squares += x * x;
  return std::sqrt(squares);
}

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Index index(std::size_t i) { return static_cast<Eigen::Index>(i); }

void expect_near(const std::vector<float>& got, const std::vector<double>& want, double tolerance,
                 const char* what) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(got[i]), want[i], tolerance) << what << " at " << i;
    if (!(std::abs(static_cast<double>(got[i]) - want[i]) <= tolerance)) break;
  }
}

TEST(PowerSgd, PlanByHand) {
  // r (rows + columns) against rows x columns: 2 x 43 < 432, 2 x 21 >= 20, 2 x 9 < 20, 2 x 8 >= 15.
  const auto plan = plan_powersgd(slots_of({{16, 27}, {20, 1}, {4, 5}, {3, 5}}), 2);
  const bool factored[] = {true, false, true, false};
  const std::size_t begins[] = {0, 432, 452, 472}, firsts[] = {0, 32, 52, 60};
  for (std::size_t t = 0; t < 4; ++t) {
    EXPECT_EQ(plan.tensors[t].is_factored, factored[t]) << t;
    EXPECT_EQ(plan.tensors[t].begin, begins[t]);
    EXPECT_EQ(plan.tensors[t].first, firsts[t]);
  }
  EXPECT_EQ(plan.first_floats, 75u);
  EXPECT_EQ(plan.second_floats, 64u);
  // ResNet-18's largest at rank 4: 512 x 4608.
  const auto large = plan_powersgd(slots_of({{512, 4608}}), 4);
  EXPECT_EQ(large.first_floats + large.second_floats, 4u * (512 + 4608));
}

// Algorithm 1 in double, from the same Q, with the sums over ranks by MPI.
TEST(PowerSgd, IsAlgorithm1) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  for (const Topology& topology : topology_list()) {
    for (const std::size_t r : {1, 2, 3}) {
      PowerBench bench(comm, kLayers, r, {.topology = topology.name.data()});
      for (std::uint64_t step = 0; step < 4; ++step) {
        bench.fill(step);
        const auto m = plus(bench.gradient, bench.residual);
        const auto m_sum = [&] {
          auto sum = m;
          MPI_Allreduce(MPI_IN_PLACE, sum.data(), static_cast<int>(sum.size()), MPI_DOUBLE, MPI_SUM,
                        comm.handle());
          return sum;
        }();
        std::vector<float> q_before(state_of(*bench.exchange).begin(),
                                    state_of(*bench.exchange).end());
        bench.run(step);
        EXPECT_TRUE(bench.exchange->finite());
        std::vector<double> want_gradient = m_sum, want_residual(m.size());
        for (const auto& tensor : bench.plan.tensors) {
          if (!tensor.is_factored) continue;
          const Eigen::Index rows = index(tensor.rows), columns = index(tensor.columns);
          const Eigen::Map<const RowMajor> own(&m[tensor.begin], rows, columns);
          const Eigen::Map<const RowMajor> sum(&m_sum[tensor.begin], rows, columns);
          const Eigen::MatrixXd q =
              Eigen::Map<Eigen::MatrixXf>(&q_before[tensor.second], columns, index(r))
                  .cast<double>();
          const Eigen::MatrixXd p = (sum * q).eval().householderQr().householderQ() *
                                    Eigen::MatrixXd::Identity(rows, index(r));
          Eigen::Map<RowMajor>(&want_gradient[tensor.begin], rows, columns) =
              p * (p.transpose() * sum);
          Eigen::Map<RowMajor>(&want_residual[tensor.begin], rows, columns) =
              own - p * (p.transpose() * own);
        }
        // P's columns are angles of sums of up to 64 products; 2^-24 each, well conditioned.
        const double tolerance = 1e-4 * comm.size();
        expect_near(bench.gradient, want_gradient, tolerance, "gradient");
        expect_near(bench.residual, want_residual, tolerance, "residual");
        expect_same_bits(comm, bench.gradient);
        const std::span<float> q = state_of(*bench.exchange);
        expect_same_bits(comm, {q.begin(), q.end()});
      }
    }
  }
}

TEST(PowerSgd, ConservesTheSum) {
  Communicator comm;
  for (const std::size_t r : {1, 4}) {
    constexpr int kSteps = 20;
    PowerBench bench(comm, kLayers, r);
    const std::size_t n = bench.gradient.size();
    std::vector<double> given(n), delivered(n);
    double largest = 0.0;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      bench.fill(step);
      const auto sum = sum_over_ranks(comm, bench.gradient);
      bench.run(step);
      for (std::size_t i = 0; i < n; ++i) {
        given[i] += sum[i];
        delivered[i] += static_cast<double>(bench.gradient[i]);
        largest = std::max(largest, std::abs(static_cast<double>(bench.gradient[i])));
      }
    }
    const auto kept = sum_over_ranks(comm, bench.residual);
    // Each rank rounds r products, M and the residual, each step, and so does what is delivered.
    for (const double v : kept) largest = std::max(largest, std::abs(v));
    const double tolerance =
        kSteps * (static_cast<double>(r) + 3.0) * (comm.size() + 1.0) * 0x1p-24 * largest;
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(given[i], delivered[i] + kept[i], tolerance) << "rank " << r << " at " << i;
      if (std::abs(given[i] - delivered[i] - kept[i]) > tolerance) break;
    }
  }
}

// I7: no residual is larger than what was to be sent, and with feedback a constant input comes
// through: its mean over n exchanges errs by the residuals' norm / n, which stays bounded.
TEST(PowerSgd, IsAContractionAndAConstantComesThrough) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  PowerBench bench(comm, kLayers, 2);
  bench.fill(7);
  const auto input = bench.gradient;
  const auto exact = sum_over_ranks(comm, input);
  std::vector<double> delivered(input.size());
  constexpr int kSteps = 300;
  double norm_at_100 = 0.0, norm_at_end = 0.0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    bench.gradient = input;
    const auto m = plus(input, bench.residual);
    bench.run(step);
    EXPECT_LE(norm(plus(bench.residual, {})), norm(m) * (1.0 + 1e-6));
    for (std::size_t i = 0; i < delivered.size(); ++i) {
      delivered[i] += static_cast<double>(bench.gradient[i]);
    }
    if (step == 100) norm_at_100 = norm(sum_over_ranks(comm, bench.residual));
  }
  norm_at_end = norm(sum_over_ranks(comm, bench.residual));
  std::vector<double> error(delivered.size());
  for (std::size_t i = 0; i < error.size(); ++i) error[i] = delivered[i] / kSteps - exact[i];
  EXPECT_LE(norm(error), norm_at_end / kSteps * 1.001 + 1e-4);
  EXPECT_LE(norm_at_end, 2.0 * norm_at_100);
  EXPECT_LT(norm(error), 0.1 * norm(exact));
}

// A sum of rank 2 is found by the second step (the first takes P from it, Q is exact at once), in
// whatever scale: Q is scaled between the steps.
TEST(PowerSgd, WhatHasTheRankIsExact) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  for (const float scale : {1.0f, 1e-16f, 1e16f}) {
    PowerBench bench(comm, {{24, 40}}, 2);
    const auto mine = static_cast<float>(comm.rank() + 1);
    const auto left = of_rank_0(comm, [] {
      std::vector<float> v(48);
      fill_normal(v, 5);
      return v;
    }());
    std::vector<float> right(80);
    fill_normal(right, 6);
    for (std::uint64_t step = 0; step < 4; ++step) {
      for (std::size_t i = 0; i < 24; ++i) {
        for (std::size_t c = 0; c < 40; ++c) {
          bench.gradient[i * 40 + c] =
              scale * mine * (left[i] * right[c] + left[24 + i] * right[40 + c]);
        }
      }
      const auto want = sum_over_ranks(comm, bench.gradient);
      bench.run(step);
      EXPECT_TRUE(bench.exchange->finite());
      expect_near(bench.gradient, want,
                  1e-4 * comm.size() * comm.size() * static_cast<double>(scale), "gradient");
    }
  }
}

TEST(PowerSgd, SmallTensorsAreSummedExactly) {
  Communicator comm;
  // At rank 8 none is factored: rank >= min(rows, columns) among them.
  PowerBench bench(comm, {{20, 1}, {1, 20}, {8, 200}, {3, 4}, {1, 1}}, 8);
  EXPECT_EQ(bench.plan.second_floats, 0u);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < bench.gradient.size(); ++i) {
      bench.gradient[i] = static_cast<float>(static_cast<int>(i % 251) - 100 + comm.rank());
    }
    const auto want = sum_over_ranks(comm, bench.gradient);
    bench.run(step);
    expect_near(bench.gradient, want, 0.0, "gradient");
  }
  for (const float v : bench.residual) EXPECT_EQ(v, 0.0f);
}

// After a step of zeros Q is zero, and the unit vectors that stand in for P need not meet what
// comes next: without new columns it would never be delivered.
TEST(PowerSgd, ZerosAreFollowedByAnything) {
  Communicator comm;
  PowerBench bench(comm, {{16, 27}}, 2);
  for (std::uint64_t step = 0; step < 3; ++step) {
    std::ranges::fill(bench.gradient, 0.0f);
    bench.run(step);
    EXPECT_TRUE(bench.exchange->finite());
    for (const float v : bench.gradient) EXPECT_EQ(v, 0.0f);
  }
  double first_left = 0.0, left = 0.0;
  for (std::uint64_t step = 3; step < 6; ++step) {
    std::ranges::fill(bench.gradient, 0.0f);
    if (step == 3) {
      for (std::size_t c = 0; c < 27; ++c) bench.gradient[15 * 27 + c] = static_cast<float>(c + 1);
    }
    const auto m = plus(bench.gradient, bench.residual);
    bench.run(step);
    if (step == 3) first_left = norm(m);
    left = norm(plus(bench.residual, {}));
  }
  EXPECT_GT(first_left, 1.0);
  EXPECT_LT(left, 1e-3 * first_left);
}

TEST(PowerSgd, SendsTheBytesOfTheFormula) {
  Communicator comm;
  std::uint64_t step = 0;
  for (const Topology& topology : topology_list()) {
    for (const auto& layers : {kLayers, std::vector<Layer>{}, std::vector<Layer>{{1, 1}},
                               std::vector<Layer>{{64, 64}}}) {
      for (const std::size_t r : {1, 2, 4, 64}) {
        for (const std::size_t segment : {3, 64, 65536}) {
          if (segment == 3 && r != 2) continue;  // a thousand messages
          PowerBench bench(comm, layers, r, {.segment = segment, .topology = topology.name.data()});
          bench.fill(step);
          bench.run(step++);
          const ExchangeStats& stats = bench.exchange->stats();
          EXPECT_EQ(stats.sent_bytes, bench.wire_bytes()) << topology.name << ", rank " << r;
          std::uint64_t sent = stats.sent_bytes, received = stats.received_bytes;
          MPI_Allreduce(MPI_IN_PLACE, &sent, 1, MPI_UINT64_T, MPI_SUM, comm.handle());
          MPI_Allreduce(MPI_IN_PLACE, &received, 1, MPI_UINT64_T, MPI_SUM, comm.handle());
          EXPECT_EQ(sent, received);
        }
      }
    }
  }
}

class PowerSgdNotFinite : public testing::TestWithParam<float> {};

// Wherever the bad value is, all ranks know, and residuals and Q have the bits that they had.
TEST_P(PowerSgdNotFinite, LeavesEverythingAsItWas) {
  Communicator comm;
  if (comm.size() == 1) {
    PowerBench bench(comm, kLayers, 2);
    bench.gradient[5] = GetParam();
    bench.run(0);
    EXPECT_FALSE(bench.exchange->finite());
    return;
  }
  // In a factored tensor, its last value, a tensor that is sent as it is, the last tensor.
  const std::size_t places[] = {5, 16 * 27 - 1, 16 * 27 + 3, floats_of(kLayers) - 1};
  int turn = 0;
  for (const Topology& topology : topology_list()) {
    PowerBench bench(comm, kLayers, 2, {.topology = topology.name.data()});
    std::uint64_t step = 0;
    for (const std::size_t bad : places) {
      // Over places and topologies every rank is the culprit.
      const int culprit = turn++ % comm.size();
      SCOPED_TRACE(fmt::format("{}, rank {}, place {}", topology.name, culprit, bad));
      bench.fill(step);
      bench.run(step++);
      EXPECT_TRUE(bench.exchange->finite());
      const auto residual = bench.residual;
      const std::vector<float> q(state_of(*bench.exchange).begin(),
                                 state_of(*bench.exchange).end());
      bench.fill(step);
      if (comm.rank() == culprit) bench.gradient[bad] = GetParam();
      bench.run(step++);
      EXPECT_FALSE(bench.exchange->finite());
      for (const float v : bench.gradient) EXPECT_EQ(v, 0.0f);
      bench.exchange->put_back_delivered();
      EXPECT_EQ(bench.residual, residual);
      EXPECT_TRUE(std::ranges::equal(q, state_of(*bench.exchange)));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Values, PowerSgdNotFinite,
                         testing::Values(std::numeric_limits<float>::quiet_NaN(),
                                         std::numeric_limits<float>::infinity()));

// P fits fp32 and Q does not: that is found late, and still nothing has changed.
TEST(PowerSgd, AQThatOverflowsIsNotFinite) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  PowerBench bench(comm, {{16, 64}}, 1);
  std::ranges::fill(bench.gradient, 3e38f);
  std::ranges::fill(state_of(*bench.exchange), 1e-3f);
  const std::vector<float> q(state_of(*bench.exchange).begin(), state_of(*bench.exchange).end());
  bench.run(0);
  EXPECT_FALSE(bench.exchange->finite());
  for (const float v : bench.residual) EXPECT_EQ(v, 0.0f);
  for (const float v : bench.gradient) EXPECT_EQ(v, 0.0f);
  EXPECT_TRUE(std::ranges::equal(q, state_of(*bench.exchange)));
}

// A step that is skipped for another bucket's sake: every rank takes back what it gave.
TEST(PowerSgd, PutsBackWhatItDelivered) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  for (const Topology& topology : topology_list()) {
    PowerBench bench(comm, {{16, 27}, {33, 50}}, 2, {.topology = topology.name.data()});
    for (std::uint64_t step = 0; step < 3; ++step) {
      bench.fill(step);
      const auto m = plus(bench.gradient, bench.residual);
      bench.run(step);
      if (step != 1) continue;
      EXPECT_GT(norm(plus(bench.residual, {})), 0.0);
      bench.exchange->put_back_delivered();
      expect_near(bench.residual, m, 1e-5, topology.name.data());
    }
  }
}

// The second step goes as that of an exchange which has dropped nothing yet and has the same Q; one
// with feedback sends what the first step has left.
TEST(PowerSgd, WithoutFeedbackTheRestIsDropped) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  PowerBench without(comm, kLayers, 2, {.has_feedback = false});
  without.fill(0);
  without.run(0);
  without.exchange->put_back_delivered();
  const std::vector<float> q(state_of(*without.exchange).begin(),
                             state_of(*without.exchange).end());
  without.fill(1);
  without.run(1);
  const auto& stats = without.exchange->stats();
  const double error = std::sqrt(stats.sampled.error_squares / stats.sampled.value_squares);
  EXPECT_GT(error, 0.5);  // normal numbers have no rank to speak of
  EXPECT_LT(error, 1.0);
  const auto second_step = [&](bool has_feedback, bool has_first_step) {
    PowerBench bench(comm, kLayers, 2, {.has_feedback = has_feedback});
    if (has_first_step) {
      bench.fill(0);
      bench.run(0);
    }
    std::ranges::copy(q, state_of(*bench.exchange).begin());
    bench.fill(1);
    bench.run(1);
    return bench.gradient;
  };
  EXPECT_EQ(without.gradient, second_step(false, false));
  EXPECT_EQ(without.gradient, second_step(true, false));
  EXPECT_NE(without.gradient, second_step(true, true));
}

// The sampled error is what the residual holds of that tensor.
TEST(PowerSgd, SampledErrorIsThatOfTheTensor) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  PowerBench bench(comm, {{16, 27}}, 2);
  bench.fill(0);
  const double all = norm(plus(bench.gradient, {}));
  bench.run(0);
  const double left = norm(plus(bench.residual, {}));
  const ExchangeStats& stats = bench.exchange->stats();
  EXPECT_NEAR(std::sqrt(stats.sampled.value_squares), all, 1e-5 * all);
  EXPECT_NEAR(std::sqrt(stats.sampled.error_squares), left, 1e-4 * all);
}

// I6, and a run that was stopped and goes on with residual and state.
TEST(PowerSgd, TimingDoesNotChangeTheBitsNorDoesAStop) {
  Communicator comm;
  for (const Topology& topology : topology_list()) {
    const Options options = {.topology = topology.name.data()};
    std::vector<float> sums[3], residuals[3];
    for (int round = 0; round < 3; ++round) {
      auto bench = std::make_unique<PowerBench>(comm, kLayers, 2, options);
      const CounterRng rng(5, RandomStream::test, static_cast<std::uint64_t>(comm.rank()));
      std::uint64_t looks = 0;
      for (std::uint64_t step = 0; step < 4; ++step) {
        bench->fill(step);
        bench->run(step, [&] {
          if (round == 1 && comm.rank() == 1 % comm.size() && rng.below(8, looks++) == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(rng.below(500, looks)));
          }
        });
        if (round != 2 || step != 1) continue;
        auto resumed = std::make_unique<PowerBench>(comm, kLayers, 2, options);
        resumed->residual = bench->residual;  // the same memory, other values
        std::ranges::copy(state_of(*bench->exchange), state_of(*resumed->exchange).begin());
        bench = std::move(resumed);
      }
      sums[round] = bench->gradient;
      residuals[round] = bench->residual;
    }
    for (const int other : {1, 2}) {
      EXPECT_EQ(sums[0], sums[other]) << topology.name;
      EXPECT_EQ(residuals[0], residuals[other]) << topology.name;
    }
  }
}

// Several at once, each with its two inner exchanges, started in another order on every rank.
TEST(PowerSgd, SeveralBucketsAtOnce) {
  Communicator comm;
  std::vector<std::unique_ptr<PowerBench>> benches;
  for (std::uint32_t b = 0; b < 3; ++b) {
    benches.push_back(std::make_unique<PowerBench>(comm, kLayers, b + 1, Options{.bucket = b}));
  }
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (auto& bench : benches) {
      bench->fill(step);
      bench->exchange->post_receives(*bench->buffers, step);
    }
    const auto turn = static_cast<std::size_t>(comm.rank());
    bool all_done = false;
    for (std::size_t look = 0; !all_done; ++look) {
      if (look < 3) benches[(look + turn) % 3]->exchange->start();
      all_done = look >= 3;
      for (auto& bench : benches) {
        bench->exchange->progress();
        all_done = all_done && bench->exchange->done();
      }
    }
  }
  for (std::uint32_t b = 0; b < 3; ++b) {
    PowerBench bench(comm, kLayers, b + 1, Options{.bucket = b});
    for (std::uint64_t step = 0; step < 3; ++step) {
      bench.fill(step);
      bench.run(step);
    }
    EXPECT_EQ(bench.gradient, benches[b]->gradient) << b;
    EXPECT_EQ(bench.residual, benches[b]->residual) << b;
  }
}

}  // namespace
}  // namespace dp
