#include "app/dptrun/dptrun_status.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

using namespace std::chrono_literals;

TEST(DptrunStatus, TextComesBack) {
  const RunProgress run = {.state = "trains",
                           .hosts = "a:1,b:2",
                           .ranks = 3,
                           .images = "44 44 40",
                           .step = 120,
                           .steps = 790,
                           .steps_per_s = 5.5,
                           .restarts = 2,
                           .command = "dptrain --compress q8\nstep 7"};
  const RunProgress again = parse_progress(progress_text(run));
  EXPECT_EQ(again.state, run.state);
  EXPECT_EQ(again.hosts, run.hosts);
  EXPECT_EQ(again.ranks, run.ranks);
  EXPECT_EQ(again.images, run.images);
  EXPECT_EQ(again.step, 120u);  // a newline in a command makes no line
  EXPECT_EQ(again.steps, 790u);
  EXPECT_EQ(again.steps_per_s, 5.5);
  EXPECT_EQ(again.restarts, 2);
  EXPECT_EQ(again.command, "dptrain --compress q8 step 7");
  EXPECT_THROW(static_cast<void>(parse_progress("step x\n")), Error);
  EXPECT_THROW(static_cast<void>(parse_progress("pace 1x\n")), Error);
}

TEST(DptrunStatus, PaceIsThatOfTheLastHalfMinute) {
  StepPace pace;
  const StepPace::Clock::time_point begin;
  EXPECT_EQ(pace.steps_per_s(), 0.0);
  pace.add(0, begin);
  pace.add(10, begin + 1s);
  EXPECT_EQ(pace.steps_per_s(), 0.0);  // too few marks
  pace.add(20, begin + 2s);
  EXPECT_NEAR(pace.steps_per_s(), 10.0, 1e-9);
  // It becomes slower.
  for (int s = 3; s <= 60; ++s) pace.add(static_cast<std::uint64_t>(20 + s), begin + s * 1s);
  EXPECT_NEAR(pace.steps_per_s(), 1.0, 0.05);
  pace.add(5, begin + 61s);  // goes on from an earlier checkpoint
  EXPECT_EQ(pace.steps_per_s(), 0.0);
}

}  // namespace
}  // namespace dp
