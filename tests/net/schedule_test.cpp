// Compares learning-rate schedules with PyTorch's (fixtures/schedules.txt, written by
// make_golden.py), and tests the warm-up.
#include "net/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
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
    EXPECT_NEAR(learning_rate_at(settings.at(name), static_cast<double>(step)), rate, 1e-14)
        << name << " " << step;
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

// numpy.interp(step, [0, int(0.23 * 100), 100], [0.2, 1, 0.07]), as airbench94.py has it.
TEST(Schedule, TriangularIsAirbenchs) {
  const ScheduleOptions options{.kind = ScheduleKind::triangular,
                                .learning_rate = 2.0,
                                .steps_per_epoch = 10,
                                .epochs = 10,
                                .milestones = {}};
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 11.5), 1.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 23), 2.0);
  EXPECT_NEAR(learning_rate_at(options, 99), 2.0 * (1 - 0.93 * 76 / 77), 1e-15);
  for (int step = 0; step < 100; ++step) EXPECT_LE(learning_rate_at(options, step), 2.0);
  // A peak at the first step or behind the last one is no division by zero.
  ScheduleOptions edge = options;
  edge.peak_at = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(edge, 0), 2.0);
  edge.peak_at = 1;
  EXPECT_NEAR(learning_rate_at(edge, 99), 2.0 * (0.2 + 0.8 * 0.99), 1e-15);
}

TEST(Schedule, PolyFallsByItsPower) {
  const ScheduleOptions options{.kind = ScheduleKind::poly,
                                .learning_rate = 0.5,
                                .steps_per_epoch = 10,
                                .epochs = 2,
                                .milestones = {},
                                .power = 2.0};
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 10), 0.125);
  EXPECT_NEAR(learning_rate_at(options, 19), 0.5 * 0.05 * 0.05, 1e-15);
}

// torch's CosineAnnealingLR(T_max = epochs), stepped once an epoch; the warm-up is by step anyway.
TEST(Schedule, ByEpochTheRateStaysWithinAnEpoch) {
  ScheduleOptions options{.kind = ScheduleKind::cosine,
                          .learning_rate = 0.4,
                          .steps_per_epoch = 10,
                          .epochs = 4,
                          .milestones = {},
                          .is_by_epoch = true};
  for (int step = 0; step < 40; ++step) {
    const double epoch = step / 10;
    EXPECT_DOUBLE_EQ(learning_rate_at(options, step),
                     0.2 * (1 + std::cos(3.14159265358979323846 * epoch / 4)));
  }
  options.warmup_epochs = 0.5;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0), 0.08);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 5), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 9), 0.4);
  EXPECT_LT(learning_rate_at(options, 10), 0.4);
}

TEST(Schedule, WarmUpNeverPassesThePeak) {
  for (const ScheduleKind kind :
       {ScheduleKind::constant, ScheduleKind::step, ScheduleKind::cosine, ScheduleKind::poly}) {
    for (const double epochs : {0.01, 0.1, 0.5, 1.05, 1.99, 2.0}) {
      const ScheduleOptions options{.kind = kind,
                                    .learning_rate = 0.1,
                                    .steps_per_epoch = 11,
                                    .epochs = 3,
                                    .warmup_epochs = epochs,
                                    .milestones = {}};
      const double warmup_steps = 11 * epochs;
      for (std::size_t step = 0; step < 33; ++step) {
        const double rate = learning_rate_at(options, static_cast<double>(step));
        EXPECT_LE(rate, 0.1) << epochs << " epochs, step " << step;
        if (static_cast<double>(step + 1) < warmup_steps) {
          EXPECT_DOUBLE_EQ(rate, 0.1 * static_cast<double>(step + 1) / warmup_steps);
        }
      }
      // The last step of the rise has the peak or nearly the peak.
      const auto last = static_cast<std::size_t>(std::ceil(warmup_steps)) - 1;
      EXPECT_GT(learning_rate_at(options, static_cast<double>(last)), 0.1 * (1 - 1e-12));
    }
  }
}

}  // namespace
}  // namespace dp::test
