// Tests the waiting time of an epoch, from which --sync-every auto chooses the length of rounds.
#include "app/output/epoch_tally.hpp"

#include <gtest/gtest.h>

namespace dp {
namespace {

TEST(EpochTally, TheLastRoundBeginsWhenItsStepsAreLeft) {
  for (const std::size_t round_steps : {0u, 1u, 3u, 16u, 20u}) {
    EpochTally tally{.steps_of_epoch = 16};
    std::size_t begins = 0;
    for (tally.steps = 1; tally.steps <= 16; ++tally.steps) {
      if (!tally.begins_last_round(round_steps)) continue;
      ++begins;
      EXPECT_EQ(tally.steps, round_steps == 3 ? 13u : 15u);
    }
    EXPECT_EQ(begins, round_steps < 16 ? 1u : 0u) << round_steps;
  }
}

TEST(EpochTally, WaitingAtTheEndOfAnEpochDoesNotCount) {
  EpochTally tally{.exchanges = 6};
  tally.times.exposed_comm = 1.2;
  EXPECT_DOUBLE_EQ(tally.exposed_s_per_exchange(), 0.2);  // an epoch of one round
  tally.inner_exchanges = 4;
  tally.inner_exposed_s = 0.04;
  EXPECT_DOUBLE_EQ(tally.exposed_s_per_exchange(), 0.01);
  EXPECT_EQ(EpochTally{}.exposed_s_per_exchange(), 0.0);
  tally.in_flight_s = 3.0;
  EXPECT_DOUBLE_EQ(tally.in_flight_s_per_exchange(), 0.5);
  EXPECT_EQ(EpochTally{}.in_flight_s_per_exchange(), 0.0);
}

}  // namespace
}  // namespace dp
