#include "app/training/shares/share_control.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "app/training/shares/share_solver.hpp"
#include "kernels/base/random.hpp"

namespace dp {
namespace {

using Counts = std::vector<std::size_t>;

Counts even(std::size_t images, std::size_t ranks) {
  Counts counts(ranks, images / ranks);
  for (std::size_t r = 0; r < images % ranks; ++r) ++counts[r];
  return counts;
}

// The best division by trying all of them.
double best_of_all(std::size_t images, std::span<const StepModel> models,
                   std::span<const ShareBounds> bounds, std::size_t rank = 0) {
  const auto [least, most] = bounds[rank];
  if (rank + 1 == models.size()) {
    return images < least || images > most ? std::numeric_limits<double>::infinity()
                                           : models[rank].seconds(images);
  }
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t n = least; n <= std::min(most, images); ++n) {
    best = std::min(
        best, std::max(models[rank].seconds(n), best_of_all(images - n, models, bounds, rank + 1)));
  }
  return best;
}

TEST(ShareSolver, IsAsGoodAsTryingAllDivisions) {
  const CounterRng rng(3, RandomStream::test);
  std::uint64_t at = 0;
  for (int i = 0; i < 200; ++i) {
    const std::size_t ranks = 2 + rng.below(3, at++), images = 12 + rng.below(20, at++);
    std::vector<StepModel> models;
    std::vector<ShareBounds> bounds;
    for (std::size_t r = 0; r < ranks; ++r) {
      models.push_back({static_cast<double>(rng.below(50, at++)),
                        1.0 + static_cast<double>(rng.below(40, at++))});
      const std::size_t least = rng.below(3, at++);
      bounds.push_back({least, images / ranks + 1 + rng.below(images, at++)});
    }
    const Counts counts = divide_images(images, models, bounds);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), images);
    for (std::size_t r = 0; r < ranks; ++r) {
      EXPECT_GE(counts[r], bounds[r].least);
      EXPECT_LE(counts[r], bounds[r].most);
    }
    EXPECT_DOUBLE_EQ(slowest_s(models, counts), best_of_all(images, models, bounds));
  }
}

TEST(ShareSolver, EqualRanksGetEqualShares) {
  const std::vector<StepModel> models(3, {0.1, 0.01});
  const std::vector<ShareBounds> bounds(3, {1, 100});
  EXPECT_EQ(divide_images(32, models, bounds), (Counts{11, 11, 10}));
}

// Hosts as a cluster has them: fixed and per-image times, and what the exchange adds.
struct Cluster {
  std::vector<StepModel> hosts;
  double exposed_s = 0;
  double noise = 0;  // the largest deviation of a measured time, as a share
  std::size_t most = 1'000'000;
  std::uint64_t draws = 0;

  [[nodiscard]] double step_s(const Counts& counts) const {
    return slowest_s(hosts, counts) + exposed_s;
  }
  [[nodiscard]] double best_s(std::size_t images, std::size_t least) const {
    const std::vector<ShareBounds> bounds(hosts.size(), {least, most});
    return slowest_s(hosts, divide_images(images, hosts, bounds)) + exposed_s;
  }
  std::vector<ShareMeasurement> measure(const Counts& counts) {
    const CounterRng rng(11, RandomStream::test);
    const auto noisy = [&] {
      const double unit = static_cast<double>(rng.below(2001, draws++)) / 1000.0 - 1.0;
      return 1.0 + noise * unit;
    };
    std::vector<ShareMeasurement> all;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      all.push_back({.compute_s = hosts[r].seconds(counts[r]) * noisy(),
                     .step_s = step_s(counts) * noisy(),
                     .most_images = most});
    }
    return all;
  }
};

// Lets the control decide that many times, and returns how often shares have changed.
int run(ShareControl& control, Cluster& cluster, Counts& counts, int intervals) {
  int changes = 0;
  for (int i = 0; i < intervals; ++i) {
    if (const auto decision = control.decide(cluster.measure(counts), counts)) {
      counts = decision->images;
      ++changes;
    }
  }
  return changes;
}

std::vector<std::size_t> own_machines(std::size_t ranks) {
  std::vector<std::size_t> machines(ranks);
  std::iota(machines.begin(), machines.end(), std::size_t{0});
  return machines;
}

TEST(ShareControl, UnevenHostsComeCloseToTheBestDivision) {
  // Speeds 1 : 1 : 1/2 : 1/4, a tenth of a step of 32 images fixed.
  Cluster cluster{.hosts = {{0.02, 0.005}, {0.02, 0.005}, {0.04, 0.010}, {0.08, 0.020}},
                  .exposed_s = 0.01};
  ShareControl control(own_machines(4), 8);
  Counts counts = even(128, 4);
  const double before = cluster.step_s(counts);
  run(control, cluster, counts, 4);  // within 50 steps
  EXPECT_LT(cluster.step_s(counts), 1.03 * cluster.best_s(128, 8));
  EXPECT_LT(cluster.step_s(counts), 0.45 * before);
  EXPECT_LE(run(control, cluster, counts, 50), 1);  // and they stay
}

TEST(ShareControl, RandomHostsWithNoiseStayNearTheBest) {
  const CounterRng rng(5, RandomStream::test);
  std::uint64_t at = 0;
  for (int i = 0; i < 50; ++i) {
    Cluster cluster{.hosts = {}, .exposed_s = 0.02, .noise = 0.02, .most = 1'000'000, .draws = at};
    const std::size_t ranks = 2 + rng.below(7, at++);
    for (std::size_t r = 0; r < ranks; ++r) {
      const double slow = 1.0 + static_cast<double>(rng.below(300, at++)) / 100.0;
      cluster.hosts.push_back({0.03 * slow, 0.004 * slow});
    }
    ShareControl control(own_machines(ranks), 4);
    Counts counts = even(32 * ranks, ranks);
    run(control, cluster, counts, 6);
    EXPECT_LT(cluster.step_s(counts), 1.08 * cluster.best_s(32 * ranks, 4)) << "case " << i;
    EXPECT_LE(run(control, cluster, counts, 100), 12) << "case " << i;
    EXPECT_LT(cluster.step_s(counts), 1.08 * cluster.best_s(32 * ranks, 4)) << "case " << i;
  }
}

// Intervals' means that differ by a twentieth: shares do not follow every one of them.
TEST(ShareControl, NoiseIsNotFollowed) {
  int changes = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Cluster cluster{.hosts = {{0.02, 0.0036}, {0.02, 0.0036}, {0.04, 0.0072}, {0.08, 0.0144}},
                    .exposed_s = 0.01,
                    .noise = 0.05,
                    .most = 1000,
                    .draws = seed << 32U};
    ShareControl control(own_machines(4), 8);
    Counts counts = even(128, 4);
    run(control, cluster, counts, 6);
    changes += run(control, cluster, counts, 50);
    EXPECT_LT(cluster.step_s(counts), 1.08 * cluster.best_s(128, 8)) << seed;
  }
  EXPECT_LT(changes, 20 * 2);
}

// As good as what the rehearsal tells, and a step that then takes longer is not a failed trial.
TEST(ShareControl, TheFirstDivisionIsNoTrial) {
  Cluster cluster{.hosts = {{0.005, 0.001}, {0.005, 0.001}, {0.01, 0.002}, {0.02, 0.004}}};
  ShareControl control({0, 1, 2, 3}, 8);
  Counts counts = even(128, 4);
  const double before_s = cluster.step_s(counts);
  const auto first = control.begin(cluster.measure(counts), counts);
  ASSERT_TRUE(first);
  EXPECT_EQ(std::accumulate(first->begin(), first->end(), std::size_t{0}), 128u);
  counts = *first;
  // The guess of the fixed part is not exact.
  EXPECT_LT(cluster.step_s(counts), 1.25 * cluster.best_s(128, 8));
  EXPECT_LT(cluster.step_s(counts), 0.5 * before_s);
  cluster.exposed_s = 10 * before_s;
  const auto next = control.decide(cluster.measure(counts), counts);
  EXPECT_FALSE(next && next->is_undone);

  Cluster alike{.hosts = std::vector<StepModel>(4, {0.005, 0.001}), .noise = 0.04};
  counts = even(128, 4);
  EXPECT_FALSE(ShareControl({0, 1, 2, 3}, 8).begin(alike.measure(counts), counts));
  EXPECT_FALSE(
      ShareControl({0, 1}, 8).begin(std::vector<ShareMeasurement>(2), std::vector{8ul, 8ul}));
}

TEST(ShareControl, EvenHostsKeepEvenShares) {
  Cluster cluster{
      .hosts = std::vector<StepModel>(4, {0.02, 0.005}), .exposed_s = 0.01, .noise = 0.01};
  ShareControl control(own_machines(4), 8);
  Counts counts = even(128, 4);
  EXPECT_EQ(run(control, cluster, counts, 200), 0);
}

TEST(ShareControl, AHostThatSlowsDownAndRecoversIsFollowed) {
  Cluster cluster{.hosts = std::vector<StepModel>(4, {0.02, 0.005}), .exposed_s = 0.01};
  ShareControl control(own_machines(4), 8);
  Counts counts = even(128, 4);
  run(control, cluster, counts, 10);
  for (const double slow : {4.0, 1.0, 3.0}) {
    cluster.hosts[2] = {0.02 * slow, 0.005 * slow};
    run(control, cluster, counts, 4);
    EXPECT_LT(cluster.step_s(counts), 1.05 * cluster.best_s(128, 8)) << "slow " << slow;
    run(control, cluster, counts, static_cast<int>(3 * slow));  // at some place in a trial
  }
}

TEST(ShareControl, RanksOfOneMachineShareAlike) {
  // Ranks 0 and 1 are on one host; what they measure differs by chance.
  Cluster cluster{.hosts = {{0.02, 0.0052}, {0.02, 0.0048}, {0.08, 0.020}}, .exposed_s = 0.01};
  ShareControl control({0, 0, 1}, 8);
  Counts counts = even(96, 3);
  run(control, cluster, counts, 6);
  EXPECT_LE(std::max(counts[0], counts[1]) - std::min(counts[0], counts[1]), 1u);
  EXPECT_GT(counts[0], 2 * counts[2]);
  ShareControl alone({0, 0, 0}, 8);
  counts = even(96, 3);
  EXPECT_EQ(run(alone, cluster, counts, 50), 0);
}

// Two hosts on the same processors: what one computes less the other has more time for, so that no
// division is better than another.
TEST(ShareControl, ATrialWithoutGainIsUndoneAndTrialsBecomeRare) {
  ShareControl control(own_machines(2), 8);
  Counts counts = even(64, 2);
  int undone = 0, changes = 0;
  for (int i = 0; i < 200; ++i) {
    // The first host seems quicker, however many images it has; a step takes as long as ever.
    const std::vector<ShareMeasurement> measured = {
        {.compute_s = 0.1, .step_s = 0.2, .most_images = 1000},
        {.compute_s = 0.2, .step_s = 0.2, .most_images = 1000}};
    if (const auto decision = control.decide(measured, counts)) {
      ++changes;
      undone += decision->is_undone ? 1 : 0;
      counts = decision->images;
    }
  }
  EXPECT_EQ(counts, even(64, 2));
  EXPECT_GT(undone, 1);
  EXPECT_LE(changes, 16);
}

// The same with times as two hosts on one processor have them: both compute at half speed until one
// has ended, so that a step takes as long with any division.
TEST(ShareControl, HostsOnOneProcessorLoseNothing) {
  const CounterRng rng(17, RandomStream::test);
  std::uint64_t draws = 0;
  ShareControl control(own_machines(2), 8);
  Counts counts = even(64, 2);
  int changes = 0;
  std::size_t most = 0;
  for (int i = 0; i < 400; ++i) {
    const auto noisy = [&](double seconds) {
      return seconds * (0.97 + 0.06 * static_cast<double>(rng.below(1001, draws++)) / 1000.0);
    };
    const auto least = static_cast<double>(std::min(counts[0], counts[1]));
    const double first_s = 0.002 * least, last_s = 0.001 * 64;
    std::vector<ShareMeasurement> measured;
    for (const std::size_t n : counts) {
      measured.push_back({.compute_s = noisy(static_cast<double>(n) == least ? first_s : last_s),
                          .step_s = noisy(last_s + 0.01),
                          .most_images = 1000});
    }
    if (const auto decision = control.decide(measured, counts)) {
      ++changes;
      counts = decision->images;
    }
    most = std::max({most, counts[0], counts[1]});
  }
  EXPECT_LE(changes, 60);
  EXPECT_LE(most, 48u);
}

TEST(ShareControl, BoundsHold) {
  Cluster cluster{.hosts = {{0.0, 0.001}, {0.0, 0.1}}, .exposed_s = 0.0, .noise = 0, .most = 40};
  ShareControl control(own_machines(2), 16);
  Counts counts = even(64, 2);
  run(control, cluster, counts, 5);
  EXPECT_EQ(counts, (Counts{40, 24}));  // memory
  cluster.most = 1000;
  run(control, cluster, counts, 5);
  EXPECT_EQ(counts, (Counts{48, 16}));  // the least share
}

// An even share of 16 images may shrink to 4, and one of 64 to 8.
TEST(ShareControl, SmallSharesHaveABoundByDefault) {
  for (const auto& [even_share, least] : {std::pair{16u, 4u}, {64u, 8u}}) {
    Cluster cluster{.hosts = {{0.001, 0.001}, {0.001, 0.001}, {0.1, 0.1}}};
    ShareControl control(own_machines(3), 0);
    Counts counts = even(3 * even_share, 3);
    run(control, cluster, counts, 20);
    EXPECT_EQ(counts[2], least);
  }
}

TEST(ShareControl, WhatIsNotMeasuredChangesNothing) {
  ShareControl control(own_machines(2), 1);
  const Counts counts = {8, 8};
  EXPECT_FALSE(control.decide(std::vector<ShareMeasurement>(2), counts));
}

}  // namespace
}  // namespace dp
