// Training in rounds whose exchange runs behind the next round's steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "app/training/replica/round_sync.hpp"
#include "tests/app/training/replica/rounds_run.hpp"

namespace dp {
namespace {

using test::CodecCase;
using test::expect_nothing_lost;
using test::RoundSetting;
using test::TrainingRun;

// Lookahead looks back to where its round began, not to before the exchange that is under way: in
// the third step it takes back half of what this step has done, which comes to the new common
// parameters.
TEST(DelayedRounds, LookaheadDoesNotReachAcrossAnExchange) {
  Communicator comm, other;
  const RoundSetting plain = {.rounds = {.delay = 1}};
  RoundSetting looking = plain;
  looking.has_lookahead = true;
  TrainingRun run(comm, plain), with_lookahead(other, looking);
  run.train(0, 3);
  with_lookahead.train(0, 3);
  const std::vector<float> common = run.common(), whole = run.values();
  const std::vector<float> half = with_lookahead.values();
  EXPECT_EQ(with_lookahead.common(), common);
  float most = 0.0f;
  for (std::size_t i = 0; i < common.size(); ++i) {
    EXPECT_NEAR(half[i] - common[i], 0.5f * (whole[i] - common[i]), 1e-6f) << i;
    most = std::max(most, std::abs(whole[i] - common[i]));
  }
  EXPECT_GT(most, 1e-3f);
}

// What a lost sum has taken back is not counted again.
TEST(DelayedRounds, StepsThatALostSumTakesBackDoNotCount) {
  const auto device = make_device({.threads = 1, .tune = false});
  std::vector<float> parameters = {1, 2}, gradient(2);
  RoundSync sync(*device, parameters, gradient, 1, {}, true);
  sync.begin();
  EXPECT_FALSE(sync.ends_round(2, false, 1.0));
  EXPECT_TRUE(sync.ends_round(2, false, 1.0));
  sync.write_difference();
  sync.leave();
  parameters = {8, 9};
  EXPECT_FALSE(sync.ends_round(3, false, 1.0));
  EXPECT_EQ(sync.kept_steps(), 1u);
  sync.drop_own_steps();
  EXPECT_EQ(parameters, (std::vector<float>{1, 2}));
  EXPECT_EQ(sync.kept_steps(), 0u);
  EXPECT_FALSE(sync.ends_round(3, false, 1.0));
  EXPECT_TRUE(sync.ends_round(3, false, 1.0));
  EXPECT_EQ(sync.steps(), 3u);
  EXPECT_EQ(sync.kept_steps(), 2u);
  sync.leave();
  EXPECT_EQ(sync.kept_steps(), 0u);
}

// A mean that comes two steps late, against a plain reference whose sums are in double: each rank
// adds what it has done meanwhile. The end of the run waits.
TEST(DelayedRounds, AddWhatARankHasDoneSinceItSent) {
  Communicator comm, other;
  constexpr std::uint64_t kSteps = 11, kDelay = 2, kLength = 4;
  constexpr double kOuterRate = 0.7, kMomentum = 0.5;
  TrainingRun run(comm, {.steps = kLength,
                         .ends_with = kSteps,
                         .rounds = {.outer = {.learning_rate = kOuterRate, .momentum = kMomentum},
                                    .delay = kDelay}});
  TrainingRun alone(other, {.exchange = false});
  const std::vector<float> start = alone.values();
  std::vector<double> common(start.begin(), start.end()), velocity(start.size()), sum;
  std::vector<float> sent;
  const auto take = [&](const std::vector<float>& base) {
    std::vector<float> own = alone.values();
    for (std::size_t i = 0; i < own.size(); ++i) {
      velocity[i] = kMomentum * velocity[i] + sum[i];
      common[i] -= kOuterRate * (sum[i] + kMomentum * velocity[i]);
      own[i] = static_cast<float>(common[i] +
                                  (static_cast<double>(own[i]) - static_cast<double>(base[i])));
    }
    alone.set_values(own);
    sum.clear();
  };
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    run.train(step, 1);
    alone.train(step, 1);
    if (!sum.empty() && step % kLength + 1 == kDelay) take(sent);
    if (step % kLength + 1 == kLength || step + 1 == kSteps) {
      sent = alone.values();
      sum.resize(sent.size());
      for (std::size_t i = 0; i < sent.size(); ++i) {
        sum[i] = (common[i] - static_cast<double>(sent[i])) / static_cast<double>(comm.size());
      }
      alone.run([&](Communicator& c) { c.all_sum(sum); });
    }
    if (step + 1 == kSteps) take(alone.values());
    const std::vector<float> mine = run.values(), wanted = alone.values();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      ASSERT_NEAR(mine[i], wanted[i], 1e-5) << "step " << step << ", value " << i;
    }
  }
  run.agree();
}

// A run may be asked to stop where a rank has made steps since it sent: what is evaluated and
// exported is common all the same, and training goes on from its own.
TEST(DelayedRounds, WhatIsExportedIsCommon) {
  Communicator comm, other;
  for (const bool has_lookahead : {false, true}) {
    TrainingRun run(has_lookahead ? other : comm,
                    {.steps = 4, .rounds = {.delay = 2}, .has_lookahead = has_lookahead});
    run.train(0, 6);
    const std::vector<float> own = run.values(), common = run.common();
    EXPECT_FALSE(run.on_all(own == common));
    run.replica().policy().swap_evaluated();
    EXPECT_TRUE(run.values() == common);
    run.agree();
    run.replica().policy().swap_evaluated();
    EXPECT_TRUE(run.values() == own);
    EXPECT_TRUE(run.common() == common);
  }
}

class DelayedWithCodec : public testing::TestWithParam<CodecCase> {};

// What is common has the same bits on all ranks, nothing is lost, and it is the same where a rank
// is late.
TEST_P(DelayedWithCodec, LeaveTheSameBitsAndLoseNothing) {
  Communicator comm, other;
  const auto ranks = static_cast<double>(comm.size());
  RoundSetting setting = {.codec = GetParam().codec,
                          .topology = GetParam().topology,
                          .steps = 3,
                          .ends_with = 10,
                          .rounds = {.delay = 2}};
  TrainingRun run(comm, setting);
  setting.has_late_rank = true;
  TrainingRun late(other, setting);
  const std::vector<float> start = run.values();
  std::vector<double> learnt(start.size());
  std::vector<float> common = start;
  std::size_t rounds = 0;
  run.train(0, 10, [&](const std::vector<float>& sent) {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      learnt[i] += (static_cast<double>(common[i]) - static_cast<double>(sent[i])) / ranks;
    }
    run.agree_on_what_is_common();
    common = run.common();
    ++rounds;
  });
  EXPECT_EQ(rounds, 4u);
  run.agree();
  expect_nothing_lost(run, start, common, learnt);
  late.train(0, 10);
  EXPECT_TRUE(late.copy() == run.copy());
}

INSTANTIATE_TEST_SUITE_P(Codecs, DelayedWithCodec,
                         testing::Values(CodecCase{"none", "ring"}, CodecCase{"q8", "tree"},
                                         CodecCase{"topk:ratio=0.1", "direct"},
                                         CodecCase{"powersgd:rank=2", "ring"},
                                         CodecCase{"ecq:bits=1", "direct"}),
                         [](const auto& row) { return "codec" + std::to_string(row.index); });

}  // namespace
}  // namespace dp
