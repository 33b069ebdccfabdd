// The governor's orders and what it learns from a step, without an exchange.
#include "comm/rate/rate_governor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/base/random.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

constexpr std::size_t kValues = 10'000;
constexpr double kAnyProgress = -1.0;

RateGovernor governor_of(const std::string& compress, std::vector<double> planned_bits = {}) {
  const CompressChoice choice = parse_compress(compress);
  return {choice.codec,
          {.compress = compress,
           .topology = "direct",
           .limits = choice.limits,
           .planned_bits = std::move(planned_bits)}};
}

std::vector<float> normal_values() {
  const CounterRng rng(3, RandomStream::test);
  std::vector<float> values(kValues);
  for (std::size_t i = 0; i < kValues; ++i) values[i] = static_cast<float>(normal(rng, i));
  return values;
}

// The other rank's values are four times as large.
MagnitudeHistogram of_other_rank() {
  std::vector<float> values = normal_values();
  for (float& value : values) value *= 4.0f;
  MagnitudeHistogram histogram;
  histogram.add(values, nullptr);
  return histogram;
}

void add_other_rank(std::span<std::int64_t> counts) {
  MagnitudeHistogram other = of_other_rank();
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts()[i];
}

// As an exchange that takes so many bits a value at both sites.
RateTally tally_of(double bits, const RateWord& word = {}) {
  const RateTally::Site site = {.bytes = static_cast<std::uint64_t>(bits * kValues / 8),
                                .values = kValues};
  return {.sites = {site, site}, .word = word, .own_squares = {}};
}

// A step in which all ranks report `word`.
void step(RateGovernor& governor, std::uint64_t number, double bits, bool is_finite = true,
          const RateWord& word = {}) {
  governor.begin_step(number, kAnyProgress, 0.0, {});
  const RateOrder order = governor.order(0.0);
  if (order.histograms != nullptr) {
    for (MagnitudeHistogram& histogram : *order.histograms) histogram.add(normal_values(), nullptr);
  }
  governor.end_step(tally_of(bits, word), is_finite, std::nullopt, add_other_rank);
}

RateOrder next_order(RateGovernor& governor, std::uint64_t number) {
  governor.begin_step(number, kAnyProgress, 0.0, {});
  return governor.order(0.0);
}

TEST(RateGovernor, CountsTheFirstStepAndSteersTheNextOnes) {
  RateGovernor governor = governor_of("ecq:bits=0.5");
  governor.connect(0, 2, std::nullopt);
  const RateOrder first = next_order(governor, 0);
  EXPECT_EQ(first.step(RateSite::total), 0.0f);
  ASSERT_NE(first.histograms, nullptr);
  step(governor, 0, 2.0);
  const RateOrder second = next_order(governor, 1);
  EXPECT_EQ(second.histograms, nullptr);
  MagnitudeHistogram values = of_other_rank();
  values.add(normal_values(), nullptr);
  EXPECT_NEAR(second.step(RateSite::total), values.step_for(0.5),
              0.01 * second.step(RateSite::total));
  // More bits than planned: coarser; fewer: finer.
  step(governor, 1, 0.8);
  const float coarser = next_order(governor, 2).step(RateSite::total);
  EXPECT_GT(coarser, second.step(RateSite::total));
  step(governor, 2, 0.1);
  EXPECT_LT(next_order(governor, 3).step(RateSite::total), coarser);
  EXPECT_EQ(governor.report().planned_bits, 0.5);
  EXPECT_NEAR(governor.report().bits[1], 0.1, 1e-3);
}

TEST(RateGovernor, AStepThatIsSkippedIsCountedAnew) {
  RateGovernor governor = governor_of("ecq:bits=0.5");
  governor.connect(0, 2, std::nullopt);
  step(governor, 0, 2.0, false);
  EXPECT_TRUE(std::isnan(governor.report().bits[0]));
  EXPECT_EQ(governor.report().planned_bits, 0.5);
  const RateOrder again = next_order(governor, 1);
  EXPECT_EQ(again.step(RateSite::total), 0.0f);
  ASSERT_NE(again.histograms, nullptr);
  for (MagnitudeHistogram& histogram : *again.histograms) {
    for (const std::int64_t count : histogram.counts()) EXPECT_EQ(count, 0);
  }
}

// One rank after the other reports its errors, so that the mean of all is steered.
TEST(RateGovernor, ReportsErrorsInTurns) {
  std::vector<bool> has_reported;
  for (const int rank : {0, 1}) {
    RateGovernor governor = governor_of("ecq:error=0.5");
    governor.connect(rank, 2, std::nullopt);
    RateTally tally = tally_of(1.0);
    tally.own_squares[0] = tally.own_squares[1] = {.gradient = 4.0, .values = 4.0, .dropped = 1.0};
    for (std::uint64_t number = 0; number < 3; ++number) {
      governor.begin_step(number, kAnyProgress, 0.0, {});
      const RateWord word = governor.order(0.0).word;
      EXPECT_EQ(word.kind, RateWord::Kind::errors);
      has_reported.push_back(word.code != RateWord::kNone);
      governor.end_step(tally, true, std::nullopt, add_other_rank);
    }
  }
  // Nothing is known before the first step has ended.
  EXPECT_EQ(has_reported, std::vector<bool>({false, false, true, false, true, false}));
}

TEST(RateGovernor, TheGuardSendsMoreWhenSomeRankHasAnAlarm) {
  RateGovernor calm = governor_of("ecq:bits=0.5"), alarmed = governor_of("ecq:bits=0.5");
  for (RateGovernor* governor : {&calm, &alarmed}) {
    governor->connect(0, 2, std::nullopt);
    for (std::uint64_t number = 0; number < 3; ++number) {
      step(*governor, number, 0.5, true, {.has_alarm = governor == &alarmed});
    }
  }
  EXPECT_EQ(calm.report().planned_bits, 0.5);
  EXPECT_GT(alarmed.report().planned_bits, 0.5);
}

// A later exchange has the bits of the next step that has some; behind the last one, these.
TEST(RateGovernor, RepeatsThePlanOfAnEarlierRun) {
  RateGovernor governor = governor_of("auto", {0.5, 0.0, 0.25, 0.125});
  governor.connect(0, 2, std::nullopt);
  std::vector<double> planned;
  for (const std::uint64_t number : std::vector<std::uint64_t>{0, 1, 2, 3, 7}) {
    step(governor, number, 0.5, true, {.code = RateWish::of_bits(0.3).code()});
    planned.push_back(governor.report().planned_bits);
  }
  EXPECT_EQ(planned, std::vector<double>({0.5, 0.25, 0.25, 0.125, 0.125}));
}

TEST(RateGovernor, FollowsTheLeastWish) {
  RateGovernor governor = governor_of("auto");
  governor.connect(0, 2, std::nullopt);
  step(governor, 0, 0.5, true, {.code = RateWish::of_bits(0.3).code()});
  step(governor, 1, 0.3, true, {.code = RateWish::of_bits(0.2).code()});
  EXPECT_NEAR(governor.report().planned_bits, 0.3, 0.001);
  EXPECT_NEAR(governor.report().wished_bits, 0.2, 0.001);
}

TEST(RateGovernor, LooksAtTheValuesOfRounds) {
  RateGovernor governor = governor_of("ecq:bits=0.5");
  governor.connect(0, 2, std::nullopt);
  governor.begin_step(0, kAnyProgress, 0.0, {});
  EXPECT_FALSE(governor.looks_at_values());
  governor.set_round({.number = 0});
  governor.begin_step(0, kAnyProgress, 0.0, {});
  EXPECT_TRUE(governor.looks_at_values());
  governor.set_round({.hidden_share = 0.5});  // then training would wait for the slowest rank
  EXPECT_FALSE(governor.looks_at_values());
}

// A round with a delay cannot examine its values without a wait. Its segments then choose their own
// steps, and the common step follows the expected ratio of the values at once. A round without a
// delay finds the ratio itself.
TEST(RateGovernor, ExpectsTheValuesOfARoundWithADelay) {
  for (const double hidden_share : {0.0, 0.75}) {
    RateGovernor governor = governor_of("ecq:bits=0.5");
    governor.connect(0, 2, std::nullopt);
    governor.set_round({.number = 0, .hidden_share = hidden_share});
    step(governor, 0, 0.5);
    governor.set_round({.number = 1, .hidden_share = hidden_share});
    governor.begin_step(1, kAnyProgress, 0.0, {});
    const RateOrder before = governor.order(0.0);
    governor.set_round({.number = 1, .hidden_share = hidden_share, .value_ratio = 0.25});
    governor.begin_step(1, kAnyProgress, 0.0, {});
    const RateOrder after = governor.order(0.0);
    const bool has_delay = hidden_share > 0.0;
    for (std::size_t s = 0; s < kRateSites; ++s) {
      ASSERT_GT(before.steps[s], 0.0f);
      EXPECT_FLOAT_EQ(after.steps[s], before.steps[s] * (has_delay ? 0.25f : 1.0f));
      EXPECT_EQ(after.even.bits[s], has_delay ? 0.5 : 0.0);
    }
  }
}

// Checkpoints of earlier versions have these parts, in this order.
TEST(RateGovernor, ListsItsState) {
  RateGovernor governor = governor_of("ecq:bits=0.5");
  StateList list;
  governor.list_state(list);
  std::vector<std::string> names;
  for (const StateBlock& block : list.blocks) names.push_back(block.name);
  const std::vector<std::string> expected = {
      "exchange/rate/log_steps",    "exchange/rate/debts",          "exchange/rate/factors",
      "exchange/rate/is_started",   "exchange/rate/followed",       "exchange/rate/run/debts",
      "exchange/rate/run/sent",     "exchange/rate/run/progress",   "exchange/rate/run/factor",
      "exchange/rate/planned_bits", "exchange/rate/guard",          "exchange/rate/dense_form",
      "exchange/rate/dense_steps",  "exchange/rate/dense_patience", "exchange/rate/told"};
  EXPECT_EQ(names, expected);
}

}  // namespace
}  // namespace dp
