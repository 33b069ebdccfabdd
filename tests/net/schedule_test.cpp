// Compares learning-rate schedules with PyTorch's (fixtures/schedules.txt, written by
// make_golden.py), and tests the warm-up.
#include "net/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>

namespace dp::test {
namespace {

using net::learning_rate_at;
using net::ScheduleKind;
using net::ScheduleOptions;

TEST(Schedule, EqualsPyTorch) {
  // The settings of make_golden.py.
  const std::map<std::string, ScheduleOptions> settings = {
      {"onecycle65",
       {.kind = ScheduleKind::onecycle,
        .learning_rate = 0.2,
        .steps_per_epoch = 13,
        .epochs = 5,
        .milestones = {}}},
      {"onecycle3",
       {.kind = ScheduleKind::onecycle,
        .learning_rate = 0.2,
        .steps_per_epoch = 3,
        .epochs = 1,
        .milestones = {}}},
      {"cosine",
       {.kind = ScheduleKind::cosine,
        .learning_rate = 0.1,
        .steps_per_epoch = 10,
        .epochs = 4,
        .milestones = {}}},
      {"step",
       {.kind = ScheduleKind::step,
        .learning_rate = 0.1,
        .steps_per_epoch = 3,
        .epochs = 10,
        .milestones = {3, 6, 8},
        .gamma = 0.2}},
  };
  std::ifstream file(std::string(DP_FIXTURES) + "/schedules.txt");
  std::map<std::string, std::size_t> rows;
  std::string name;
  std::size_t step = 0;
  double rate = 0;
  while (file >> name >> step >> rate) {
    ++rows[name];
    // PyTorch computes the cosine by a recursion, which adds a few rounding errors of the peak.
    EXPECT_NEAR(learning_rate_at(settings.at(name), step), rate, 1e-14) << name << " " << step;
  }
  EXPECT_EQ(rows, (std::map<std::string, std::size_t>{
                      {"cosine", 40}, {"onecycle3", 3}, {"onecycle65", 65}, {"step", 30}}));
}

TEST(Schedule, ConstantAndWarmUp) {
  ScheduleOptions options{
      .learning_rate = 0.4, .steps_per_epoch = 4, .epochs = 3, .milestones = {}};
  EXPECT_EQ(learning_rate_at(options, 0), 0.4);
  EXPECT_EQ(learning_rate_at(options, 1000), 0.4);
  options.warmup_epochs = 1.5;  // six steps
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0), 0.4 / 6);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 2), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 5), 0.4);
  EXPECT_EQ(learning_rate_at(options, 6), 0.4);
  // The cosine begins where the rise ends.
  options.kind = ScheduleKind::cosine;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 6), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 9), 0.2);
  // A warm-up longer than the run is cut to the run.
  options.warmup_epochs = 100;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 11), 0.4);
}

TEST(Schedule, WarmUpNeverPassesThePeak) {
  for (const ScheduleKind kind :
       {ScheduleKind::constant, ScheduleKind::step, ScheduleKind::cosine}) {
    for (const double epochs : {0.01, 0.1, 0.5, 1.05, 1.99, 2.0}) {
      const ScheduleOptions options{.kind = kind,
                                    .learning_rate = 0.1,
                                    .steps_per_epoch = 11,
                                    .epochs = 3,
                                    .warmup_epochs = epochs,
                                    .milestones = {}};
      const double warmup_steps = 11 * epochs;
      for (std::size_t step = 0; step < 33; ++step) {
        const double rate = learning_rate_at(options, step);
        EXPECT_LE(rate, 0.1) << epochs << " epochs, step " << step;
        if (static_cast<double>(step + 1) < warmup_steps) {
          EXPECT_DOUBLE_EQ(rate, 0.1 * static_cast<double>(step + 1) / warmup_steps);
        }
      }
      // The last step of the rise has the peak or nearly the peak.
      const auto last = static_cast<std::size_t>(std::ceil(warmup_steps)) - 1;
      EXPECT_GT(learning_rate_at(options, last), 0.1 * (1 - 1e-12));
    }
  }
}

}  // namespace
}  // namespace dp::test
