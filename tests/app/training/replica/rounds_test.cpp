// Training in rounds: what ranks do alone and what they exchange is what
// app/training/replica/round_sync.hpp says, with every kind of codec, and ranks have the same bits
// after each round.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "app/training/replica/round_sync.hpp"
#include "kernels/base/random.hpp"
#include "tests/app/training/replica/rounds_run.hpp"

namespace dp {
namespace {

using test::CodecCase;
using test::expect_nothing_lost;
using test::TrainingRun;

// Rounds of one step: each rank makes its own step, and then all take the mean of the parameters,
// as the exchange of fp32 adds it up.
TEST(Rounds, OfOneStepAreTheExchangeOfParametersAtEveryStep) {
  Communicator comm, other;
  for (const char* topology : {"ring", "direct"}) {
    SCOPED_TRACE(topology);
    TrainingRun run(comm, {.topology = topology, .steps = 1});
    TrainingRun alone(other, {.exchange = false});
    Communicator third;
    const std::vector<float> start = alone.values();
    ASSERT_TRUE(alone.on_all(start == run.values()));
    std::vector<float> differences(start.size()), common = start;
    Reducer reducer(third, differences, run.replica().sync().buckets(),
                    {.topology = topology, .comm_timeout_s = 30});
    const auto ranks = static_cast<float>(comm.size());
    for (std::uint64_t step = 0; step < 4; ++step) {
      run.train(step, 1);
      alone.train(step, 1);
      const std::vector<float> own = alone.values();
      reducer.begin_step(step);
      for (std::size_t i = 0; i < own.size(); ++i) {
        differences[i] = (1.0f / ranks) * (common[i] - own[i]);
      }
      for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
      EXPECT_TRUE(reducer.wait_step().finite);
      for (std::size_t i = 0; i < own.size(); ++i) common[i] -= differences[i];
      alone.set_values(common);
      EXPECT_TRUE(run.values() == common) << "step " << step;
    }
    EXPECT_FALSE(common == start);
  }
}

class RoundsWithCodec : public testing::TestWithParam<CodecCase> {};

// After each round all ranks have the same bits; and of what ranks have learnt, all is in the
// common parameters or in some rank's residual.
TEST_P(RoundsWithCodec, LeaveTheSameBitsAndLoseNothing) {
  Communicator comm;
  const auto ranks = static_cast<double>(comm.size());
  for (const std::size_t steps : {1, 3}) {
    SCOPED_TRACE(steps);
    TrainingRun run(comm,
                    {.codec = GetParam().codec, .topology = GetParam().topology, .steps = steps});
    const std::vector<float> start = run.values();
    std::vector<double> learnt(start.size());  // by all ranks
    std::vector<float> common = start;
    std::size_t rounds = 0;
    run.train(0, 3 * steps + 1, [&](const std::vector<float>& own) {
      for (std::size_t i = 0; i < own.size(); ++i) {
        learnt[i] += (static_cast<double>(common[i]) - static_cast<double>(own[i])) / ranks;
      }
      run.agree();
      common = run.values();
      ++rounds;
    });
    EXPECT_EQ(rounds, steps == 1 ? 4u : 3u);
    run.agree_on_what_is_common();
    expect_nothing_lost(run, start, common, learnt);
    if (steps > 1) {
      EXPECT_EQ(run.on_all(run.values() == common), false) << "a step of a rank's own";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, RoundsWithCodec,
    testing::Values(CodecCase{"none", "ring"}, CodecCase{"q8", "ring"}, CodecCase{"q4", "tree"},
                    CodecCase{"sign", "direct"}, CodecCase{"topk:ratio=0.1", "direct"},
                    CodecCase{"powersgd:rank=2", "ring"}, CodecCase{"ecq:step=3", "ring"},
                    CodecCase{"ecq:bits=1", "direct"}, CodecCase{"auto", "direct"},
                    CodecCase{"q8", "ps"}, CodecCase{"q4", "hierarchical"}),
    [](const auto& row) {
      std::string name = row.param.codec + "_" + row.param.topology;
      std::ranges::replace_if(
          name, [](char c) { return std::isalnum(c) == 0; }, '_');
      return name;
    });

// A checkpoint in the middle of a round that other ranks have read: ranks that stand for several of
// the earlier ones count as many times, and those that stand for none not at all.
TEST(Rounds, ARoundOfOtherRanksEndsWithTheMeanOfTheEarlierOnes) {
  Communicator comm;
  constexpr double kOuterRate = 0.7, kMomentum = 0.5;
  TrainingRun run(comm, {.codec = "q4",
                         .steps = 9,
                         .rounds = {.outer = {.learning_rate = kOuterRate, .momentum = kMomentum}},
                         .has_averages = true});
  run.train(0, 4);
  const auto count_of = [](int rank) { return rank == 2 ? 0 : rank == 0 ? 2 : 1; };
  const std::vector<float> before = run.common(), own = run.values();
  std::vector<double> sum(own.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    sum[i] = count_of(comm.rank()) * (static_cast<double>(before[i]) - static_cast<double>(own[i]));
  }
  double all = 0;
  for (int rank = 0; rank < comm.size(); ++rank) all += count_of(rank);
  run.run([&](Communicator& c) {
    c.all_sum(sum);
    run.replica().policy().merge_ranks(c, static_cast<std::size_t>(count_of(c.rank())));
  });
  EXPECT_EQ(run.steps_of_round(), 0u);
  const std::vector<float> after = run.values();
  double off = 0, change = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const double wanted =
        static_cast<double>(before[i]) - kOuterRate * (1.0 + kMomentum) * sum[i] / all;
    off = std::max(off, std::abs(static_cast<double>(after[i]) - wanted));
    change = std::max(change, std::abs(wanted - static_cast<double>(before[i])));
  }
  EXPECT_LT(off, 1e-3 * change);
  // The exponential average sees the common parameters, which it begins with.
  EXPECT_TRUE(std::ranges::equal(test::floats_of(run.list(), "ema/weights"), after));
  run.agree();
  run.agree_on_what_is_common();
}

// As a round is lost, in which a rank's change is not finite.
TEST(Rounds, ARoundOfOtherRanksThatIsNotFiniteIsLost) {
  Communicator comm;
  TrainingRun run(comm, {.steps = 9, .has_averages = true});
  run.train(0, 4);
  const std::vector<float> common = run.common();
  const StateList state = run.list();
  const std::span<const float> average = test::floats_of(state, "ema/weights");
  const std::vector<float> before(average.begin(), average.end());
  std::vector<float> own = run.values();
  if (comm.rank() + 1 == comm.size()) own[1] = std::numeric_limits<float>::infinity();
  run.set_values(own);
  run.run([&](Communicator& c) { run.replica().policy().merge_ranks(c, 1); });
  EXPECT_EQ(run.values(), common);
  EXPECT_EQ(run.common(), common);
  EXPECT_TRUE(std::ranges::equal(average, before));
  EXPECT_EQ(run.steps_of_round(), 0u);
}

// Three rounds of given differences: the outer step is DiLoCo's, computed in double.
TEST(Rounds, OuterStepIsItsFormula) {
  constexpr std::size_t kCount = 1000;
  const auto device = make_device({.threads = 1, .tune = false});
  const CounterRng rng(9, RandomStream::test);
  std::vector<float> parameters(kCount), gradient(kCount);
  std::vector<double> common(kCount), velocity(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    parameters[i] = static_cast<float>(rng.uniform(i)) - 0.5f;
    common[i] = static_cast<double>(parameters[i]);
  }
  constexpr double kRate = 0.7, kMomentum = 0.9;
  RoundSync sync(*device, parameters, gradient, 4, {.learning_rate = kRate, .momentum = kMomentum});
  sync.begin();
  for (std::size_t round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < kCount; ++i) {
      parameters[i] += 0.01f * (static_cast<float>(rng.uniform(kCount * (round + 1) + i)) - 0.5f);
    }
    const std::vector<float> own = parameters;
    sync.write_difference();
    // The sum over four ranks of which this one is the first, and the others have not moved.
    for (std::size_t i = 0; i < kCount; ++i) {
      const double sum = (common[i] - static_cast<double>(own[i])) / 4.0;
      EXPECT_NEAR(static_cast<double>(gradient[i]), sum, 1e-7);
      velocity[i] = kMomentum * velocity[i] + sum;
      common[i] -= kRate * (sum + kMomentum * velocity[i]);
    }
    sync.take_sum();
    for (std::size_t i = 0; i < kCount; ++i) {
      EXPECT_NEAR(static_cast<double>(parameters[i]), common[i], 3e-7) << round;
    }
  }
}

TEST(Rounds, EndAfterTheStepsOfTheirFirstOrWhereTheyMust) {
  const auto device = make_device({.threads = 1, .tune = false});
  std::vector<float> parameters = {1, 2}, gradient(2);
  RoundSync sync(*device, parameters, gradient, 1, {});
  sync.begin();
  EXPECT_FALSE(sync.ends_round(3, false, 1.0));
  EXPECT_FALSE(sync.ends_round(1, false, 1.0));  // the length stays
  EXPECT_TRUE(sync.ends_round(9, false, 1.0));
  EXPECT_EQ(sync.steps(), 3u);
  sync.write_difference();
  sync.take_sum();
  EXPECT_EQ(sync.steps(), 0u);
  EXPECT_FALSE(sync.ends_round(5, false, 1.0));
  EXPECT_TRUE(sync.ends_round(5, true, 1.0));
  parameters = {8, 9};
  sync.go_back();
  EXPECT_EQ(parameters, (std::vector<float>{1, 2}));
}

// A rank that skips a step of its own has made fewer updates; what is common stays the same.
TEST(Rounds, ReplicasAgreeWhereOneRankSkipsAStep) {
  Communicator comm;
  for (const net::OptimizerKind kind : {net::OptimizerKind::sgd, net::OptimizerKind::adam}) {
    TrainingRun run(comm, {.steps = 3,
                           .nan_step = 1,
                           .optimizer = {.kind = kind, .momentum = 0.9f},
                           .has_averages = true});
    for (std::uint64_t step = 0; step < 6; ++step) {
      run.train(step, 1);
      EXPECT_NO_THROW(run.agree_on_what_is_common()) << step;
    }
    EXPECT_NO_THROW(run.agree());
  }
}

// Images that are skipped leave no trace in the running statistics, which would keep a value that
// is not a number for ever.
TEST(Rounds, ASkippedStepIsNotInTheStatistics) {
  Communicator comm;
  TrainingRun run(comm, {.steps = 3, .nan_step = 1});
  std::vector<std::vector<float>> after;
  for (std::uint64_t step = 0; step < 3; ++step) {
    run.train(step, 1);
    after.push_back(run.statistics());
  }
  EXPECT_TRUE(std::ranges::all_of(after[2], [](float value) { return std::isfinite(value); }));
  EXPECT_EQ(after[0] == after[1], comm.rank() == comm.size() - 1);
  EXPECT_NE(after[1], after[2]);
}

}  // namespace
}  // namespace dp
