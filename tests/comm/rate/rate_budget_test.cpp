// The rate that hides behind backward, against cases that are worked out by hand.
#include "comm/rate/rate_budget.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "comm/topologies/ring.hpp"
#include "kernels/base/random.hpp"

namespace dp {
namespace {

// 1 MB/s, and one byte on the wire per byte of payload.
RateBudgetSetup setup_of(std::span<const BudgetBucket> buckets, double backward_end_s) {
  return {.buckets = buckets,
          .backward_end_s = backward_end_s,
          .goodput_bytes_per_s = 1e6,
          .wire_factor = 1.0};
}

TEST(RateBudget, OneBucketHasTheTimeFromItsReadinessToTheDeadline) {
  const std::vector<BudgetBucket> one = {{.elements = 1'000'000, .ready_s = 1.0}};
  RateBudgetSetup setup = setup_of(one, 1.5);
  // 0.5 s carry 500,000 bytes = 4 bits for each value.
  EXPECT_DOUBLE_EQ(hidden_rate(setup).bits_per_value, 4.0);
  EXPECT_EQ(hidden_rate(setup).binding, 0u);
  setup.slack_s = 0.25;
  EXPECT_DOUBLE_EQ(hidden_rate(setup).bits_per_value, 6.0);
  setup.latency_s = 0.125;  // two legs
  EXPECT_DOUBLE_EQ(hidden_rate(setup).bits_per_value, 4.0);
  setup.wire_factor = ring_wire_factor(4);  // 1.5
  EXPECT_DOUBLE_EQ(hidden_rate(setup).bits_per_value, 4.0 / 1.5);
}

TEST(RateBudget, FixedBytesComeFirst) {
  const std::vector<BudgetBucket> two = {{.elements = 1'000'000, .ready_s = 0.0},
                                         {.elements = 0, .ready_s = 0.0, .fixed_bytes = 250'000}};
  const RateBudget budget = hidden_rate(setup_of(two, 0.5));
  EXPECT_DOUBLE_EQ(budget.bits_per_value, 2.0);
  EXPECT_EQ(budget.binding, 0u);
  EXPECT_TRUE(budget.fits);
}

TEST(RateBudget, TheBucketAfterWhichTimeIsShortBinds) {
  // Bucket 0 alone could send 8 bits in 1 s. Bucket 1 has 0.1 s for 100,000 values: 8 bits, too.
  // Both together have 1 s for 1,100,000 values: 8 / 1.1 bits.
  std::vector<BudgetBucket> two = {{.elements = 1'000'000, .ready_s = 0.0},
                                   {.elements = 100'000, .ready_s = 0.9}};
  EXPECT_DOUBLE_EQ(hidden_rate(setup_of(two, 1.0)).bits_per_value, 8.0 / 1.1);
  EXPECT_EQ(hidden_rate(setup_of(two, 1.0)).binding, 0u);
  // Half of the time for bucket 1: 4 bits, and now it is the one that binds.
  two[1].ready_s = 0.95;
  EXPECT_NEAR(hidden_rate(setup_of(two, 1.0)).bits_per_value, 4.0, 1e-9);
  EXPECT_EQ(hidden_rate(setup_of(two, 1.0)).binding, 1u);
}

TEST(RateBudget, BucketsStartInTheirOrder) {
  // Bucket 1 is ready before bucket 0, but waits for it: both have 0.5 s.
  const std::vector<BudgetBucket> two = {{.elements = 500'000, .ready_s = 0.5},
                                         {.elements = 500'000, .ready_s = 0.1}};
  EXPECT_DOUBLE_EQ(hidden_rate(setup_of(two, 1.0)).bits_per_value, 4.0);
}

TEST(RateBudget, NothingToSend) {
  EXPECT_TRUE(std::isinf(hidden_rate({}).bits_per_value));
  const std::vector<BudgetBucket> one = {{.elements = 10, .ready_s = 0.0}}, empty = {{}};
  RateBudgetSetup alone = setup_of(one, 1.0);
  alone.wire_factor = ring_wire_factor(1);
  EXPECT_TRUE(std::isinf(hidden_rate(alone).bits_per_value));
  EXPECT_FALSE(hidden_rate(alone).binding.has_value());
  EXPECT_TRUE(std::isinf(hidden_rate(setup_of(empty, 1.0)).bits_per_value));
}

TEST(RateBudget, NothingFits) {
  const std::vector<BudgetBucket> late = {{.elements = 1000, .ready_s = 1.0}};
  RateBudgetSetup setup = setup_of(late, 1.0);
  setup.latency_s = 0.01;
  EXPECT_EQ(hidden_rate(setup).bits_per_value, 0.0);
  EXPECT_FALSE(hidden_rate(setup).fits);
  EXPECT_EQ(hidden_rate(setup).binding, 0u);
}

// The last bucket is late in any case: what others send meanwhile costs nothing.
TEST(RateBudget, WhatIsLateAnywayTakesNoBitsFromOthers) {
  const std::vector<BudgetBucket> heavy = {{.elements = 1'000'000, .ready_s = 0.0},
                                           {.elements = 0, .ready_s = 0.5, .fixed_bytes = 600'000}};
  RateBudgetSetup setup = setup_of(heavy, 1.0);
  // It ends after 1.1 s; of these, 0.5 s are left for bucket 0.
  EXPECT_FALSE(hidden_rate(setup).fits);
  EXPECT_NEAR(hidden_rate(setup).bits_per_value, 4.0, 1e-9);
  EXPECT_EQ(hidden_rate(setup).binding, 0u);
  setup.latency_s = 0.25;  // does not change it
  EXPECT_NEAR(hidden_rate(setup).bits_per_value, 4.0, 1e-9);
  setup.slack_s = 0.125;
  EXPECT_NEAR(hidden_rate(setup).bits_per_value, 5.0, 1e-9);
}

// Simulates the port at the rate that was found: the last byte leaves at the deadline, no later.
TEST(RateBudget, APortThatServesInOrderEndsAtTheDeadline) {
  const CounterRng random(1, RandomStream::test);
  for (std::uint64_t trial = 0; trial < 200; ++trial) {
    std::vector<BudgetBucket> buckets;
    for (std::uint64_t j = 0; j < 1 + trial % 7; ++j) {
      const auto uniform = [&](std::uint64_t k) { return random.uniform(64 * trial + 3 * j + k); };
      buckets.push_back({.elements = 1000 + static_cast<std::size_t>(1e6 * uniform(0)),
                         .ready_s = uniform(1),
                         .fixed_bytes = 1e3 * uniform(2)});
    }
    RateBudgetSetup setup = setup_of(buckets, 1.2);
    setup.slack_s = 0.05;
    setup.latency_s = 0.01;
    setup.wire_factor = ring_wire_factor(8);
    const RateBudget budget = hidden_rate(setup);
    ASSERT_TRUE(budget.fits);
    double ready_s = 0.0, free_s = 0.0;
    for (const BudgetBucket& bucket : buckets) {
      ready_s = std::max(ready_s, bucket.ready_s);
      const double bytes =
          setup.wire_factor *
          (static_cast<double>(bucket.elements) * budget.bits_per_value / 8.0 + bucket.fixed_bytes);
      free_s = std::max(free_s, ready_s) + bytes / setup.goodput_bytes_per_s;
    }
    EXPECT_NEAR(free_s + 0.02, 1.25, 1e-9) << "trial " << trial;
  }
}

}  // namespace
}  // namespace dp
