// Tests that every sample of an epoch comes exactly once, for any number of ranks and when it
// changes.
#include "io/images/sampler.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

struct Case {
  std::size_t samples, global_batch, ranks;
};

std::vector<Sampler> all_ranks(const Case& c, std::uint64_t epoch,
                               SampleOrder order = SampleOrder::shuffled) {
  std::vector<Sampler> samplers;
  for (std::size_t rank = 0; rank < c.ranks; ++rank) {
    samplers.emplace_back(SamplerOptions{.samples = c.samples,
                                         .global_batch = c.global_batch,
                                         .rank = rank,
                                         .ranks = c.ranks,
                                         .seed = 5,
                                         .order = order});
    samplers.back().start_epoch(epoch);
  }
  return samplers;
}

class SamplerCases : public ::testing::TestWithParam<Case> {};

TEST_P(SamplerCases, EverySampleOnceCountsDifferByAtMostOne) {
  const Case& c = GetParam();
  const std::vector<Sampler> ranks = all_ranks(c, 2);
  std::vector<int> seen(c.samples);
  std::size_t walked = 0;
  ASSERT_EQ(ranks[0].steps(), (c.samples + c.global_batch - 1) / c.global_batch);
  for (std::size_t step = 0; step < ranks[0].steps(); ++step) {
    std::size_t sum = 0, least = SIZE_MAX, most = 0;
    for (const Sampler& sampler : ranks) {
      const std::size_t n = sampler.rank_samples(step);
      EXPECT_LE(n, sampler.largest_batch());
      for (std::size_t k = 0; k < n; ++k) ++seen[sampler.sample(step, k)];
      EXPECT_THROW(static_cast<void>(sampler.sample(step, n)), Error);
      EXPECT_EQ(sampler.global_samples(step), ranks[0].global_samples(step));
      sum += n;
      least = std::min(least, n);
      most = std::max(most, n);
    }
    EXPECT_EQ(sum, ranks[0].global_samples(step));
    if (step + 1 < ranks[0].steps()) {
      EXPECT_EQ(sum, c.global_batch);
    }
    EXPECT_LE(most - least, 1u);
    walked += sum;
  }
  EXPECT_EQ(walked, c.samples);
  EXPECT_TRUE(std::ranges::all_of(seen, [](int n) { return n == 1; }));
}

INSTANTIATE_TEST_SUITE_P(Sizes, SamplerCases,
                         ::testing::Values(Case{100, 10, 1}, Case{103, 10, 3}, Case{101, 20, 4},
                                           Case{7, 128, 8}, Case{1, 1, 1}, Case{5, 2, 4},
                                           Case{1'000, 7, 5}, Case{0, 4, 2}));

TEST(Sampler, TheGlobalBatchDoesNotDependOnTheNumberOfRanks) {
  const auto batch = [](std::size_t ranks) {
    std::multiset<std::size_t> samples;
    for (const Sampler& sampler : all_ranks({1'000, 64, ranks}, 3)) {
      for (std::size_t k = 0; k < sampler.rank_samples(4); ++k)
        samples.insert(sampler.sample(4, k));
    }
    return samples;
  };
  EXPECT_EQ(batch(1), batch(4));
  EXPECT_EQ(batch(1), batch(7));
}

// A run that goes on with another number of ranks in the middle of an epoch.
TEST(Sampler, EverySampleComesOnceWhenTheNumberOfRanksChanges) {
  constexpr std::size_t kSamples = 103;
  for (std::size_t before = 1; before <= 5; ++before) {
    for (std::size_t after = 1; after <= 5; ++after) {
      SCOPED_TRACE(fmt::format("{} ranks, then {}", before, after));
      const std::vector<Sampler> first = all_ranks({kSamples, 20, before}, 2);
      const std::vector<Sampler> second = all_ranks({kSamples, 20, after}, 2);
      std::vector<int> seen(kSamples);
      for (std::size_t step = 0; step < first[0].steps(); ++step) {
        for (const Sampler& sampler : step < 2 ? first : second) {
          for (std::size_t k = 0; k < sampler.rank_samples(step); ++k) {
            ++seen[sampler.sample(step, k)];
          }
        }
      }
      EXPECT_TRUE(std::ranges::all_of(seen, [](int n) { return n == 1; }));
    }
  }
}

TEST(Sampler, PermutationFollowsFromSeedAndEpoch) {
  const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    Sampler sampler({.samples = 500, .global_batch = 500, .seed = seed});
    sampler.start_epoch(epoch);
    std::vector<std::size_t> samples;
    for (std::size_t k = 0; k < 500; ++k) samples.push_back(sampler.sample(0, k));
    return samples;
  };
  EXPECT_EQ(order(1, 4), order(1, 4));
  EXPECT_NE(order(1, 4), order(1, 5));
  EXPECT_NE(order(1, 4), order(2, 4));
  // The epoch's order does not depend on the epochs drawn before it.
  Sampler walked({.samples = 500, .global_batch = 500, .seed = 1});
  for (std::uint64_t epoch = 0; epoch <= 4; ++epoch) walked.start_epoch(epoch);
  EXPECT_EQ(walked.sample(0, 17), order(1, 4)[17]);
}

// Each of 8 samples should come first in about 1/8 of the epochs: chi-square with 7 degrees of
// freedom stays under 29.9 with probability 0.9999.
TEST(Sampler, PermutationsAreUniform) {
  constexpr int kEpochs = 8'000;
  Sampler sampler({.samples = 8, .global_batch = 8, .seed = 11});
  for (const std::size_t position : {0u, 3u, 7u}) {
    std::vector<int> counts(8);
    for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      sampler.start_epoch(epoch);
      ++counts[sampler.sample(0, position)];
    }
    double chi_square = 0;
    for (const int n : counts) chi_square += (n - 1'000.0) * (n - 1'000.0) / 1'000.0;
    EXPECT_LT(chi_square, 29.9) << "position " << position;
  }
}

// A run that goes on with another number of ranks keeps its global batch, so that a step has the
// same samples whoever trains on them.
TEST(Sampler, EverySampleOnceWhereTheNumberOfRanksChanges) {
  constexpr std::size_t kSamples = 103, kBatch = 12;
  for (std::size_t before = 1; before <= 5; ++before) {
    for (std::size_t after = 1; after <= 5; ++after) {
      const std::vector<Sampler> first = all_ranks({kSamples, kBatch, before}, 3);
      const std::vector<Sampler> then = all_ranks({kSamples, kBatch, after}, 3);
      ASSERT_EQ(first[0].steps(), then[0].steps());
      for (const std::size_t change : {std::size_t{1}, std::size_t{4}, first[0].steps() - 1}) {
        std::vector<int> seen(kSamples);
        for (std::size_t step = 0; step < first[0].steps(); ++step) {
          for (const Sampler& rank : step < change ? first : then) {
            for (std::size_t k = 0; k < rank.rank_samples(step); ++k) {
              ++seen[rank.sample(step, k)];
            }
          }
        }
        EXPECT_EQ(std::ranges::count(seen, 1), kSamples) << before << " to " << after;
      }
    }
  }
}

TEST(Sampler, EvaluationIsInOrder) {
  const std::vector<Sampler> ranks = all_ranks({10, 4, 3}, 9, SampleOrder::in_order);
  EXPECT_EQ(ranks[0].sample(0, 0), 0u);
  EXPECT_EQ(ranks[0].sample(0, 1), 3u);
  EXPECT_EQ(ranks[1].sample(1, 0), 5u);
  EXPECT_EQ(ranks[2].rank_samples(2), 0u);
}

}  // namespace
}  // namespace dp
