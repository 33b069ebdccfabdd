// Training in rounds: nothing that ranks have learnt is lost while the learning rate does not fall,
// what waits in residuals fades with the rate, and a lost round leaves nothing behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/training/replica/round_sync.hpp"
#include "tests/app/training/replica/rounds_run.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

using test::CodecCase;
using test::expect_nothing_lost;
using test::TrainingRun;

struct LostCase {
  CodecCase codec;
  std::size_t delay = 0;
};

class LostRounds : public testing::TestWithParam<LostCase> {};

// All ranks go back to where the round began, and nothing of it comes with the next one, although
// only one bucket was not finite: what the other buckets had delivered is in no residual.
TEST_P(LostRounds, LeaveNothingBehind) {
  Communicator comm;
  const auto ranks = static_cast<double>(comm.size());
  const std::size_t delay = GetParam().delay;
  TrainingRun run(comm, {.codec = GetParam().codec.codec,
                         .topology = GetParam().codec.topology,
                         .steps = 3,
                         .ends_with = 12,
                         .lost_step = 5,
                         .rounds = {.delay = delay}});
  const std::vector<float> start = run.values();
  std::vector<float> common = start;
  std::vector<double> learnt(start.size());
  std::size_t rounds = 0;
  const auto on_round = [&](const std::vector<float>& sent) {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      learnt[i] += (static_cast<double>(common[i]) - static_cast<double>(sent[i])) / ranks;
    }
    run.agree_on_what_is_common();
    common = run.common();
    ++rounds;
  };
  run.train(0, 5, on_round);
  const std::vector<float> residual = run.residual();
  run.train(5, delay + 1, on_round);
  EXPECT_EQ(rounds, 1u);
  EXPECT_TRUE(run.values() == common);
  EXPECT_TRUE(run.residual() == residual);
  run.agree();
  run.agree_on_what_is_common();
  run.train(delay + 6, 6 - delay, on_round);
  EXPECT_EQ(rounds, 3u);
  run.agree();
  expect_nothing_lost(run, start, common, learnt);
}

INSTANTIATE_TEST_SUITE_P(Codecs, LostRounds,
                         testing::Values(LostCase{{"none", "ring"}}, LostCase{{"q8", "ring"}},
                                         LostCase{{"q4", "tree"}, 2},
                                         LostCase{{"topk:ratio=0.1", "direct"}, 1},
                                         LostCase{{"powersgd:rank=2", "ring"}},
                                         LostCase{{"ecq:step=3", "ps"}},
                                         LostCase{{"q8", "hierarchical"}, 1}),
                         [](const auto& row) { return "case" + std::to_string(row.index); });

// Averages begin anew from the common parameters, and nothing of the lost round is in them.
TEST(Rounds, ALostRoundIsNotInAverages) {
  Communicator comm;
  TrainingRun run(comm, {.steps = 3, .lost_step = 2, .has_averages = true});
  const std::vector<float> start = run.values();
  run.train(0, 3);
  const StateList state = run.list();
  for (const char* name : {"lookahead/weights", "ema/weights"}) {
    const std::span<const float> values = test::floats_of(state, name);
    EXPECT_TRUE(std::ranges::equal(values, start)) << name;
  }
}

// As if what waits were multiplied by the ratio of two rounds' mean rates where that is below 1.
TEST(Rounds, WhatIsNotDeliveredFadesWithTheRate) {
  Communicator comm, other;
  TrainingRun run(comm, {.codec = "q4"});
  TrainingRun by_hand(other, {.codec = "q4"});
  const std::vector<double> rates = {0.125, 0.25, 0.0625, 0.015625};
  std::uint64_t step = 0;
  for (std::size_t round = 0; round < rates.size(); ++round, step += 2) {
    if (round > 0 && rates[round] < rates[round - 1]) {
      by_hand.replica().sync().reducer().scale_residual(
          static_cast<float>(rates[round] / rates[round - 1]));
    }
    run.set_rate(rates[round]);
    by_hand.set_rate(rates[round], TrainingRun::kRate);
    run.train(step, 2);
    by_hand.train(step, 2);
    EXPECT_EQ(run.values(), by_hand.values()) << round;
  }
}

// In a lost round, too, and once: the next one fades from there.
TEST(Rounds, WhatWaitsFadesInALostRound) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  TrainingRun run(comm, {.codec = "q4", .steps = 3, .lost_step = 5, .rate_factor = 0.5});
  run.train(0, 5);
  std::vector<float> faded = run.residual();
  EXPECT_TRUE(std::ranges::any_of(faded, [](float value) { return value != 0.0f; }));
  for (float& value : faded) value *= 0.125f;
  run.train(5, 1);
  EXPECT_EQ(run.residual(), faded);
}

// growth= of ecq: in rounds of H steps a gradient comes into 1 / (1 - m^H) of them.
TEST(Rounds, MoreMayWaitWhereMomentumBringsItInAgain) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);  // one sends nothing
  const std::pair<net::OptimizerOptions, double> cases[] = {
      {{.momentum = 0.5f}, 0.5},
      {{.momentum = 0.0f}, 0.0},
      {{.kind = net::OptimizerKind::adam, .beta1 = 0.75}, 0.75}};
  for (const auto& [optimizer, momentum] : cases) {
    for (const std::size_t steps : {1, 3}) {
      Communicator own;
      TrainingRun run(own, {.codec = "ecq:bits=1,growth=6",
                            .topology = "direct",
                            .steps = steps,
                            .optimizer = optimizer});
      run.train(0, steps);
      EXPECT_DOUBLE_EQ(run.replica().sync().rate_report().most_growth,
                       6.0 / (1.0 - std::pow(momentum, steps)));
    }
  }
}

// Post-local: with momentum m, a gradient that waits would have changed the parameters by 1/(1 - m)
// of its product with the learning rate.
TEST(Rounds, WhatWaitsIsAChangeOfParametersWhereRoundsBegin) {
  Communicator comm;
  TrainingRun run(comm, {.codec = "q4", .first_epoch = 1});
  run.train(0, 3);
  const std::span<const float> residual = run.replica().sync().reducer().residual();
  const std::vector<float> before(residual.begin(), residual.end());
  run.begin_epoch(1);
  const double still = 1.0 - static_cast<double>(0.9f);
  const auto factor = static_cast<float>(TrainingRun::kRate / still);
  EXPECT_TRUE(std::ranges::equal(
      residual, before, [&](float value, float gradient) { return value == gradient * factor; }));
  if (comm.size() == 1) return;
  EXPECT_TRUE(std::ranges::any_of(before, [](float value) { return value != 0.0f; }));
}

TEST(Rounds, FadeWithTheMeanRateOfTheirSteps) {
  const auto device = make_device({.threads = 1, .tune = false});
  std::vector<float> parameters = {1, 2}, gradient(2);
  RoundSync sync(*device, parameters, gradient, 1, {}, true);
  sync.begin();
  const auto ratio_after = [&](std::vector<double> rates) {
    for (std::size_t i = 0; i < rates.size(); ++i) {
      EXPECT_EQ(sync.ends_round(rates.size(), false, rates[i]), i + 1 == rates.size());
    }
    const double ratio = sync.take_rate_ratio();
    sync.write_difference();
    sync.leave();
    return ratio;
  };
  EXPECT_EQ(ratio_after({0.5, 0.25}), 1.0);  // the first
  EXPECT_EQ(ratio_after({0.75}), 1.0);
  EXPECT_EQ(ratio_after({0.5, 0.25, 0.375}), 0.5);
  EXPECT_EQ(ratio_after({0.0, 0.0}), 1.0);
  EXPECT_EQ(ratio_after({0.25}), 0.25 / 0.375);
  // In the middle of a round, for one that goes on.
  EXPECT_FALSE(sync.ends_round(2, false, 0.25));
  StateList list;
  sync.list_state(list);
  const auto saved = [&](std::string_view name) {
    const auto block =
        std::ranges::find_if(list.blocks, [&](const StateBlock& b) { return b.name == name; });
    if (block == list.blocks.end() || block->bytes.size() != sizeof(double)) return -1.0;
    double value = 0.0;
    std::memcpy(&value, block->bytes.data(), sizeof(value));
    return value;
  };
  EXPECT_EQ(saved("rounds/rate_sum"), 0.25);
  EXPECT_EQ(saved("rounds/rate_before"), 0.25);
}

}  // namespace
}  // namespace dp
