#include "io/images/shares.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "io/images/sampler.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Every image of a step belongs to exactly one part of one rank, for any weights.
TEST(Shares, DivideEveryStepExactly) {
  const std::vector<std::vector<std::uint64_t>> all = {
      {1}, {3, 1}, {1, 0}, {41, 41, 23, 23}, {1, 2, 3, 4, 5}, {1'000'000'000, 1, 7}};
  for (const auto& weights : all) {
    const Shares shares(weights);
    const std::size_t ranks = weights.size();
    for (const std::size_t images : {0u, 1u, 2u, 5u, 100u, 128u, 10'007u}) {
      for (const std::size_t parts : {1u, 2u, 3u}) {
        std::vector<int> seen(images);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          std::size_t of_rank = 0;
          for (std::size_t part = 0; part < parts; ++part) {
            const StepImages its = shares.of(images, rank, ranks, part, parts);
            for (std::size_t k = 0; k < its.count; ++k) ++seen.at(its.first + k * its.stride);
            of_rank += its.count;
          }
          EXPECT_EQ(of_rank, shares.count(images, rank, ranks));
          EXPECT_LE(of_rank, shares.most(images, ranks));
          EXPECT_GE(of_rank, shares.least(images, ranks));
        }
        EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), std::size_t{0}), images);
        for (const int times : seen) EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST(Shares, OfAsManyImagesAreTheWeights) {
  const std::vector<std::uint64_t> weights = {41, 40, 24, 23};
  const Shares shares(weights);
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(shares.count(128, rank, 4), weights[rank]);
  // 64 : 42.67 : 21.33
  const Shares ratio({3, 2, 1});
  EXPECT_EQ(ratio.count(128, 0, 3), 64u);
  EXPECT_EQ(ratio.count(128, 1, 3), 42u);
  EXPECT_EQ(ratio.count(128, 2, 3), 22u);
}

TEST(Shares, EqualWeightsAreEvenShares) {
  EXPECT_TRUE(Shares({7, 7, 7}).is_even());
  EXPECT_EQ(Shares({7, 7, 7}), Shares());
  EXPECT_EQ(Shares().text(), "even");
  EXPECT_EQ(Shares({3, 2}).text(), "3:2");
  EXPECT_EQ(Shares().weight(5), 1u);
  EXPECT_EQ(Shares({3, 2}).weight(1), 2u);
  // Rank 1's second part of two, on three ranks: images 4, 10, 16.
  const StepImages its = Shares().of(17, 1, 3, 1, 2);
  EXPECT_EQ(its.first, 4u);
  EXPECT_EQ(its.stride, 6u);
  EXPECT_EQ(its.count, 3u);
}

TEST(Shares, SamplerFollowsThem) {
  const auto make = [](std::size_t rank) {
    return Sampler({.samples = 103,
                    .global_batch = 20,
                    .rank = rank,
                    .ranks = 3,
                    .shares = Shares({6, 3, 1}),
                    .seed = 4});
  };
  std::vector<int> seen(103);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    Sampler sampler = make(rank);
    EXPECT_EQ(sampler.largest_batch(), (std::vector<std::size_t>{12, 6, 2})[rank]);
    for (std::size_t step = 0; step < sampler.steps(); ++step) {
      for (std::size_t k = 0; k < sampler.rank_samples(step); ++k) ++seen[sampler.sample(step, k)];
    }
    sampler.set_shares({});
    EXPECT_EQ(sampler.rank_samples(0), rank < 2 ? 7u : 6u);
  }
  for (const int times : seen) EXPECT_EQ(times, 1);
}

TEST(Shares, BadOnesAreRefused) {
  EXPECT_THROW(Shares(std::vector<std::uint64_t>{}), Error);
  EXPECT_THROW(Shares({0, 0}), Error);
  EXPECT_THROW(Shares({Shares::kMostWeight + 1, 1}), Error);
  EXPECT_THROW(static_cast<void>(Shares({2, 1}).of(10, 0, 3)), Error);
}

}  // namespace
}  // namespace dp
