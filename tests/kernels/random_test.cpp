// Tests the counter-based generator: known answers, no state, and statistics. The statistics are of
// fixed numbers, so they always pass or always fail. Each is a chi-square X of f degrees of
// freedom, for which (Laurent and Massart 2000) X - f is above 2 sqrt(f x) + 2 x, or below -2
// sqrt(f x), each with a probability of at most exp(-x): 8e-7 for x = 14. A distribution that is
// too even also fails: it would be a counter, not random.
#include "kernels/base/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace dp {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
constexpr CounterRng kRng(20, RandomStream::test);

// Counts of draws that are all equally likely.
void expect_uniform(const std::vector<std::size_t>& counts, const std::string& what) {
  std::size_t draws = 0;
  for (const std::size_t count : counts) draws += count;
  const double expected = static_cast<double>(draws) / static_cast<double>(counts.size());
  ASSERT_GE(expected, 50.0) << "too few for a chi-square";
  double chi_square = 0;
  for (const std::size_t count : counts) {
    const double difference = static_cast<double>(count) - expected;
    chi_square += difference * difference / expected;
  }
  const auto freedom = static_cast<double>(counts.size() - 1);
  const double limit = 2.0 * std::sqrt(14.0 * freedom);
  EXPECT_TRUE(chi_square > freedom - limit && chi_square < freedom + limit + 28.0)
      << what << ": chi-square " << chi_square << " of " << freedom << " degrees of freedom";
}

// Draws `count` values, each one of `bins`.
void expect_uniform(std::size_t bins, std::size_t count,
                    const std::function<std::uint64_t(std::uint64_t position)>& draw,
                    const std::string& what) {
  std::vector<std::size_t> counts(bins);
  for (std::uint64_t i = 0; i < count; ++i) ++counts.at(draw(i));
  expect_uniform(counts, what);
}

// The published outputs of SplitMix64 from the state 1234567 (and the first one from 0).
TEST(Mix64, IsSplitMix64) {
  constexpr std::uint64_t kWeyl = 0x9E3779B97F4A7C15u;
  EXPECT_EQ(mix64(0), 0xE220A8397B1DCDAFu);
  const std::uint64_t expected[] = {6457827717110365317u, 3203168211198807973u,
                                    9817491932198370423u, 4593380528125082431u,
                                    16408922859458223821u};
  for (std::uint64_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(mix64(1234567 + i * kWeyl), expected[i]);
  }
}

// Pins the meaning of a seed, computed by another implementation of the formula in random.hpp.
TEST(CounterRng, KnownAnswers) {
  struct Answer {
    CounterRng rng;
    std::uint64_t position, bits;
    double uniform;
    std::uint64_t below_10, below_2_32;
  };
  const Answer answers[] = {
      {{0, RandomStream::weights}, 0, 0x888E02C9E33F38E6u, 0.5334169142618038, 5, 2291008201u},
      {{1, RandomStream::codec, 7, 3}, 0, 0x30F43214011188E3u, 0.19122612942107342, 1, 821309972u},
      {{1, RandomStream::codec, 7, 3}, 1, 0xF428D6E487DFF86Au, 0.9537481601654462, 9, 4096317156u},
      {{kMost, RandomStream::test, kMost, kMost},
       kMost,
       0x3D626C03BA109761u,
       0.23978304949747753,
       2,
       1029860355u},
      {{42, RandomStream::permutation, 11},
       std::uint64_t{1} << 40,
       0x4FF881B614569616u,
       0.3123856610803506,
       3,
       1341686198u},
  };
  for (const Answer& a : answers) {
    EXPECT_EQ(a.rng.bits(a.position), a.bits);
    EXPECT_EQ(a.rng.uniform(a.position), a.uniform);
    EXPECT_EQ(a.rng.below(10, a.position), a.below_10);
    EXPECT_EQ(a.rng.below(std::uint64_t{1} << 32, a.position), a.below_2_32);
  }
  // Logarithm, root and cosine may differ in the last place from library to library.
  EXPECT_NEAR(normal(CounterRng(1, RandomStream::codec, 7, 3), 0), 0.624196737363741, 1e-14);
}

TEST(CounterRng, StreamsKeepTheirNumbers) {
  EXPECT_EQ(static_cast<int>(RandomStream::weights), 1);
  EXPECT_EQ(static_cast<int>(RandomStream::permutation), 2);
  EXPECT_EQ(static_cast<int>(RandomStream::augmentation), 3);
  EXPECT_EQ(static_cast<int>(RandomStream::synthetic_image), 4);
  EXPECT_EQ(static_cast<int>(RandomStream::codec), 5);
  EXPECT_EQ(static_cast<int>(RandomStream::test), 6);
  EXPECT_EQ(static_cast<int>(RandomStream::dropout), 7);
}

TEST(CounterRng, OrderDoesNotMatter) {
  constexpr std::uint64_t kCount = 1000;
  std::vector<std::uint64_t> forwards, backwards(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) forwards.push_back(kRng.bits(i));
  const CounterRng copy = kRng;
  for (std::uint64_t i = kCount; i-- > 0;) {
    static_cast<void>(copy.uniform(3 * i));
    backwards[i] = copy.bits(i);
  }
  EXPECT_EQ(forwards, backwards);
  // It needs no memory and no initialisation: the compiler can evaluate it.
  static_assert(CounterRng(1, RandomStream::codec, 7, 3).bits(1) == 0xF428D6E487DFF86Au);
}

// Many positions, keys and streams all give different 64 bits. Of n draws, n^2 / 2^65 pairs would
// be equal by chance, here 5e-10.
TEST(CounterRng, PositionsKeysAndStreamsDiffer) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (std::uint64_t stream = 1; stream <= 6; ++stream) {
      for (std::uint64_t a = 0; a < 8; ++a) {
        for (std::uint64_t b = 0; b < 8; ++b) {
          const CounterRng rng(seed, static_cast<RandomStream>(stream), a, b);
          for (std::uint64_t i = 0; i < 80; ++i) all.push_back(rng.bits(i));
        }
      }
    }
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

TEST(CounterRng, UniformIsWithinBounds) {
  double least = 1, most = 0;
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    const double u = kRng.uniform(i);
    least = std::min(least, u);
    most = std::max(most, u);
  }
  // The extremes of a million draws are 1e-6 from the ends on average, and beyond 2e-5 for one seed
  // in 5e8.
  EXPECT_GE(least, 0.0);
  EXPECT_LT(least, 2e-5);
  EXPECT_LT(most, 1.0);
  EXPECT_GT(most, 1.0 - 2e-5);
}

TEST(CounterRng, BelowIsWithinBounds) {
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(kRng.below(1, i), 0u);
    for (const std::uint64_t n : {std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{1000},
                                  (std::uint64_t{1} << 32) - 1, std::uint64_t{1} << 32}) {
      ASSERT_LT(kRng.below(n, i), n);
    }
    // The position's fraction of the whole range, rounded down.
    EXPECT_EQ(kRng.below(std::uint64_t{1} << 32, i), kRng.bits(i) >> 32);
  }
}

TEST(CounterRng, EveryBitIsSetHalfOfTheTime) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    std::size_t set = 0;
    constexpr std::size_t kCount = 20'000;
    for (std::uint64_t i = 0; i < kCount; ++i) set += kRng.bits(i) >> bit & 1u;
    expect_uniform({set, kCount - set}, "bit " + std::to_string(bit));
  }
}

TEST(CounterRng, ValuesAreUniform) {
  constexpr std::size_t kCount = 200'000;
  expect_uniform(
      1000, kCount, [](auto i) { return static_cast<std::uint64_t>(kRng.uniform(i) * 1000); },
      "uniform");
  for (const std::uint64_t n : {2u, 3u, 10u, 1000u}) {
    expect_uniform(
        n, kCount, [&](auto i) { return kRng.below(n, i); }, "below " + std::to_string(n));
  }
  // Counters start far from zero and advance in steps, as in a run.
  expect_uniform(
      256, kCount, [](auto i) { return kRng.below(256, (std::uint64_t{1} << 40) + 64 * i); },
      "positions in steps of 64");
}

// Pairs that must be independent, counted in 16 x 16 cells.
TEST(CounterRng, NeighboursAreIndependent) {
  constexpr std::size_t kCount = 100'000;
  const auto expect_independent = [](const std::string& what, auto first, auto second) {
    expect_uniform(
        256, kCount, [&](auto i) { return 16 * (first(i) >> 60) + (second(i) >> 60); }, what);
  };
  const auto at = [](std::uint64_t seed, RandomStream stream, std::uint64_t a, std::uint64_t b) {
    return [=](std::uint64_t i) { return CounterRng(seed, stream, a, b).bits(i); };
  };
  const auto here = at(1, RandomStream::codec, 5, 5);
  expect_independent("positions", here, [&](std::uint64_t i) { return here(i + 1); });
  expect_independent("seeds", here, at(2, RandomStream::codec, 5, 5));
  expect_independent("streams", here, at(1, RandomStream::test, 5, 5));
  expect_independent("first keys", here, at(1, RandomStream::codec, 6, 5));
  expect_independent("second keys", here, at(1, RandomStream::codec, 5, 6));
  // The same position of one key after the other, as steps and samples are.
  expect_independent(
      "one position of many keys",
      [](std::uint64_t i) { return CounterRng(1, RandomStream::codec, i).bits(0); },
      [](std::uint64_t i) { return CounterRng(1, RandomStream::codec, i + 1).bits(0); });
}

// The normal distribution's cumulative probability turns its deviates into uniform values.
TEST(Normal, IsNormal) {
  constexpr std::size_t kCount = 100'000;
  expect_uniform(
      100, kCount,
      [](auto i) {
        const double probability = 0.5 * std::erfc(-normal(kRng, i) / std::sqrt(2.0));
        return std::min<std::uint64_t>(static_cast<std::uint64_t>(probability * 100), 99);
      },
      "normal");
  double sum = 0, squares = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double x = normal(kRng, i);
    ASSERT_TRUE(std::isfinite(x)) << i;
    sum += x;
    squares += x * x;
  }
  // Standard errors: 1 / sqrt(n) of the mean, sqrt(2 / n) of the variance.
  const double root = std::sqrt(static_cast<double>(kCount));
  EXPECT_LT(std::abs(sum / kCount), 5.0 / root);
  EXPECT_LT(std::abs(squares / kCount - 1.0), 5.0 * std::sqrt(2.0) / root);
}

}  // namespace
}  // namespace dp
