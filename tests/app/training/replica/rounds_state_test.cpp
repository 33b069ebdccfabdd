// Training in rounds: what is listed as state is all that goes on from the middle of a round.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/app/training/replica/rounds_run.hpp"
#include "tests/support/every_part_counts.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

using test::RoundSetting;
using test::StateCopy;
using test::TrainingRun;

class RoundState : public testing::TestWithParam<RoundSetting> {};

// From the middle of a round and from its end; into the same object and into another.
TEST_P(RoundState, GivenBackTheSameStepsGiveTheSameBits) {
  Communicator comm, other;
  for (const std::uint64_t before : {4, 6}) {
    SCOPED_TRACE(before);
    TrainingRun run(comm, GetParam()), resumed(other, GetParam());
    run.train(0, before);
    const StateCopy copy = run.copy();
    run.train(before, 4);
    const StateCopy after = run.copy();
    EXPECT_FALSE(copy == after);
    run.restore(copy);
    run.train(before, 4);
    EXPECT_TRUE(run.copy() == after);
    resumed.restore(copy);
    resumed.train(before, 4);
    EXPECT_TRUE(resumed.copy() == after);
    resumed.agree_on_what_is_common();
  }
}

TEST_P(RoundState, EveryPartCounts) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);  // a rank alone goes back to its own parameters
  TrainingRun run(comm, GetParam());
  // Without the length ranks would end other rounds than was planned; the number is for the rate's
  // guard, dropped steps are another test's, and the rate's parts are tested in state_test.cpp.
  const auto is_left_out = [](std::string_view name) {
    return name == "rounds/length" || name == "rounds/number" || name == "rounds/dropped" ||
           name.starts_with("exchange/rate");
  };
  // From the first step of the second round on.
  test::expect_every_part_counts(run, 4, 4, is_left_out);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, RoundState,
    testing::Values(RoundSetting{.codec = "q4", .steps = 3, .rate_factor = 0.9},
                    RoundSetting{.codec = "ecq:bits=1",
                                 .topology = "direct",
                                 .steps = 3,
                                 .rounds = {.outer = {.learning_rate = 0.7, .momentum = 0.9}},
                                 .rate_factor = 0.9},
                    RoundSetting{.codec = "topk:ratio=0.1",
                                 .steps = 3,
                                 .optimizer = {.kind = net::OptimizerKind::adam},
                                 .has_averages = true,
                                 .rate_factor = 0.9},
                    // Nothing is under way after steps 4 and 6, and after four more of each.
                    RoundSetting{
                        .codec = "q4",
                        .steps = 3,
                        .ends_with = 6,
                        .rounds = {.outer = {.learning_rate = 0.7, .momentum = 0.9}, .delay = 1},
                        .has_averages = true,
                        .rate_factor = 0.9}),
    [](const auto& row) { return "setting" + std::to_string(row.index); });

}  // namespace
}  // namespace dp
