#include "comm/topologies/owner_weights.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/topologies/topology.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/random.hpp"

namespace dp {
namespace {

using Weights = std::vector<std::uint32_t>;

// How long the slowest link is busy, in buckets over the fastest link.
double time_of(const std::vector<double>& shares, const std::vector<double>& rates) {
  double slowest = 0;
  for (std::size_t r = 0; r < rates.size(); ++r) {
    const double load = 1.0 + (static_cast<double>(rates.size()) - 2.0) * shares[r];
    slowest = std::max(slowest, load / rates[r]);
  }
  return slowest;
}

std::vector<double> shares_of(const Weights& weights) {
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> shares;
  for (const std::uint32_t weight : weights) shares.push_back(weight / all);
  return shares;
}

TEST(OwnerWeights, EqualLinksOwnAsMuch) {
  EXPECT_TRUE(owner_weights(std::vector<double>{1e6, 1e6, 1e6}).empty());
  EXPECT_TRUE(owner_weights(std::vector<double>{1e6, 1.2e6, 1e6, 1.1e6}).empty());
  EXPECT_TRUE(owner_weights(std::vector<double>{1e6, 1e7}).empty());  // no division helps two
  EXPECT_TRUE(owner_weights({}).empty());
  EXPECT_TRUE(owner_weights(std::vector<double>{0.0, 1e6, 1e6}).empty());  // not measured
}

TEST(OwnerWeights, ALinkAtATenthOwnsNothing) {
  const Weights weights = owner_weights(std::vector<double>{12e6, 12e6, 1.2e6, 12e6});
  EXPECT_EQ(weights, (Weights{333, 333, 0, 333}));
  EXPECT_EQ(owner_wire_factor(weights, 4, 2), 1.0);
  EXPECT_NEAR(owner_wire_factor(weights, 4, 0), 5.0 / 3.0, 1e-9);
  EXPECT_EQ(owner_wire_factor({}, 4, 0), 1.5);
}

// No other division is quicker: moving a part of any rank's share to any other one does not help.
TEST(OwnerWeights, NoMoveMakesTheSlowestLinkQuicker) {
  const CounterRng rng(3, RandomStream::test);
  std::uint64_t at = 0;
  for (int i = 0; i < 200; ++i) {
    std::vector<double> rates;
    const std::size_t ranks = 3 + rng.below(6, at++);
    for (std::size_t r = 0; r < ranks; ++r) {
      rates.push_back(1.0 + static_cast<double>(rng.below(99, at++)));
    }
    const Weights weights = owner_weights(rates);
    if (weights.empty()) continue;
    const std::vector<double> shares = shares_of(weights);
    const double time = time_of(shares, rates);
    for (std::size_t from = 0; from < ranks; ++from) {
      for (std::size_t to = 0; to < ranks; ++to) {
        std::vector<double> other = shares;
        const double part = std::min(0.02, other[from]);
        other[from] -= part;
        other[to] += part;
        EXPECT_GE(time_of(other, rates), time * (1.0 - 0.003));  // weights are thousandths
      }
    }
    EXPECT_LE(time,
              time_of(std::vector<double>(ranks, 1.0 / static_cast<double>(ranks)), rates) * 1.001);
  }
}

TEST(OwnerWeights, TextComesBack) {
  const Weights weights = {300, 0, 700};
  EXPECT_EQ(owner_weights_text(weights), "300:0:700");
  EXPECT_EQ(parse_owner_weights("300:0:700"), weights);
  EXPECT_TRUE(parse_owner_weights("").empty());
  for (const char* bad : {"x", "300:", "1:2:1001", "-1:2", "0:0", "1 2"}) {
    EXPECT_THROW(static_cast<void>(parse_owner_weights(bad)), Error) << bad;
  }
}

}  // namespace
}  // namespace dp
