// Adam's step before the exchange: against Adam in double, the ratio of ranks' mean squares, and
// what masks, faults and saved states leave.
#include "comm/topologies/adam_velocity.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "tests/comm/exchange/exchange_fixture.hpp"

namespace dp {
namespace {

using testing_support::fill_normal;

std::vector<TensorSlot> slots(std::initializer_list<std::size_t> sizes) {
  std::vector<TensorSlot> all;
  std::size_t offset = 0;
  for (const std::size_t size : sizes) {
    all.push_back({.offset = offset, .rows = 1, .columns = size, .name = "t"});
    offset += size;
  }
  return all;
}

// Adds what each of these ranks has, as GradientSync does before that step.
void compare(std::span<AdamVelocity* const> ranks, std::uint64_t step) {
  std::vector<float> sums = ranks[0]->comparison(step);
  EXPECT_EQ(!sums.empty(), AdamVelocity::compares_before(step));
  if (sums.empty()) return;
  for (const AdamVelocity* rank : ranks.subspan(1)) {
    const std::vector<float> more = rank->comparison(step);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
  }
  for (AdamVelocity* rank : ranks) rank->compare(sums, step);
}

TEST(AdamVelocity, OfOneRankIsAdam) {
  // More than a tile, and a rest of lanes.
  const auto tensors = slots({5'003, 7, 4'096});
  const std::size_t n = 5'003 + 7 + 4'096;
  const AdamVelocityOptions options = {.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3};
  AdamVelocity adam(n, tensors, options);
  AdamVelocity* const alone[] = {&adam};
  std::vector<double> mean(n), square(n);
  std::vector<float> gradient(n);
  for (std::uint64_t step = 0; step < 40; ++step) {
    compare(alone, step);
    fill_normal(gradient, step);
    const std::vector<float> before = gradient;
    adam.prepare(0, std::span(gradient).first(5'010));  // two buckets
    adam.prepare(5'010, std::span(gradient).subspan(5'010));
    const double t = static_cast<double>(step) + 1.0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto g = static_cast<double>(before[i]);
      mean[i] = 0.8 * mean[i] + 0.2 * g;
      square[i] = 0.95 * square[i] + 0.05 * g * g;
      const double root = std::sqrt(square[i] / (1.0 - std::pow(0.95, t))) + 1e-3;
      const double expected = mean[i] / (1.0 - std::pow(0.8, t)) / root;
      ASSERT_NEAR(static_cast<double>(gradient[i]), expected, 2e-5) << step << ", " << i;
    }
  }
}

TEST(AdamVelocity, TheRatioIsThatOfTheRanksMeanSquares) {
  constexpr std::size_t kRanks = 4, kFloats = 3'000;
  const auto tensors = slots({kFloats, kFloats, kFloats});
  std::vector<std::unique_ptr<AdamVelocity>> owned;
  std::vector<AdamVelocity*> ranks;
  for (std::size_t r = 0; r < kRanks; ++r) {
    owned.push_back(std::make_unique<AdamVelocity>(
        3 * kFloats, tensors, AdamVelocityOptions{.beta2 = 0.99, .ranks = kRanks}));
    ranks.push_back(owned.back().get());
  }
  // The first tensor's gradients are the same, the second one's independent. Of the third's, rank 3
  // has a part that is a third as large as the others'.
  std::vector<float> gradient(3 * kFloats), same(kFloats);
  for (std::uint64_t step = 0; step < 600; ++step) {
    compare(ranks, step);
    for (std::size_t r = 0; r < kRanks; ++r) {
      fill_normal(gradient, 10 * step + r);
      fill_normal(same, 10 * step + 7);
      std::ranges::copy(same, gradient.begin());
      if (r == 3) {
        for (std::size_t i = 2 * kFloats; i < gradient.size(); ++i) gradient[i] /= 3.0f;
      }
      ranks[r]->prepare(0, gradient);
    }
  }
  for (std::size_t r = 0; r < kRanks; ++r) {
    // About 13 independent comparisons of 16 lanes: a relative deviation of 0.1 and of 0.14 for the
    // quotient.
    EXPECT_NEAR(ranks[r]->ratio(0, 0), 15.0, 15.0 * 0.5);
    EXPECT_NEAR(ranks[r]->ratio(1, 0), 3.0, 2.0);
    const double own = r == 3 ? 1.0 / 9.0 : 1.0;
    EXPECT_NEAR(ranks[r]->ratio(2, 0), (3.0 + 1.0 / 9.0 - own) / own, (r == 3 ? 9.0 : 1.0) * 1.6);
  }
}

// An embedding: the gradients of its first rows have a part that all ranks have in common; each of
// the other rows has one on some rank in every hundredth step, or in every tenth.
TEST(AdamVelocity, RareRowsMoveAsFarAsWithAdam) {
  constexpr std::size_t kRanks = 4, kRows = 380, kDense = 20, kRare = 200, kColumns = 32;
  constexpr std::size_t kFloats = kRows * kColumns;
  constexpr double kBeta1 = 0.9, kBeta2 = 0.95;
  const std::vector<TensorSlot> tensors = {{.rows = kRows, .columns = kColumns, .name = "t"}};
  std::vector<std::unique_ptr<AdamVelocity>> owned;
  std::vector<AdamVelocity*> ranks;
  for (std::size_t r = 0; r < kRanks; ++r) {
    owned.push_back(std::make_unique<AdamVelocity>(
        kFloats, tensors, AdamVelocityOptions{.beta1 = kBeta1, .beta2 = kBeta2, .ranks = kRanks}));
    ranks.push_back(owned.back().get());
  }
  std::mt19937 random(7);
  std::vector<double> mean(kFloats), square(kFloats), wanted(kFloats), moved(kFloats);
  std::vector<float> common(kFloats), noise(kFloats), gradient(kFloats);
  for (std::uint64_t step = 0; step < 400; ++step) {
    compare(ranks, step);
    fill_normal(common, 100 + step / 50);
    std::vector<double> sum(kFloats);
    for (std::size_t r = 0; r < kRanks; ++r) {
      fill_normal(noise, 1000 + kRanks * step + r);
      for (std::size_t row = 0; row < kRows; ++row) {
        const std::size_t every = row < kDense ? 1 : kRanks * (row < kRare ? 100 : 10);
        const bool is_active = random() % every == 0;
        for (std::size_t i = row * kColumns; i < (row + 1) * kColumns; ++i) {
          gradient[i] = is_active ? common[i] + noise[i] : 0.0f;
        }
      }
      for (std::size_t i = 0; i < kFloats; ++i) sum[i] += static_cast<double>(gradient[i]);
      ranks[r]->prepare(0, gradient);
      for (std::size_t i = 0; i < kFloats; ++i) moved[i] += static_cast<double>(gradient[i]);
    }
    const double t = static_cast<double>(step) + 1.0;
    for (std::size_t i = 0; i < kFloats; ++i) {
      mean[i] = kBeta1 * mean[i] + (1.0 - kBeta1) * sum[i];
      square[i] = kBeta2 * square[i] + (1.0 - kBeta2) * sum[i] * sum[i];
      const double root = std::sqrt(square[i] / (1.0 - std::pow(kBeta2, t))) + 1e-8;
      wanted[i] += mean[i] / (1.0 - std::pow(kBeta1, t)) / root;
    }
  }
  const auto norm = [](std::span<const double> values) {
    return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
  };
  const auto ratio = [&](std::size_t begin, std::size_t end) {
    const std::size_t first = begin * kColumns, size = (end - begin) * kColumns;
    return norm(std::span(moved).subspan(first, size)) /
           norm(std::span(wanted).subspan(first, size));
  };
  EXPECT_NEAR(ratio(0, kDense), 1.0, 0.2);
  EXPECT_NEAR(ratio(kDense, kRare), 1.0, 0.06);
  EXPECT_NEAR(ratio(kRare, kRows), 1.0, 0.06);
}

// Gradients of one sign have sketches as random as others: the squares add up to the square norm.
TEST(AdamVelocity, SketchesHaveTheSquareNorm) {
  for (const auto& [rows, columns] : std::vector<std::pair<std::size_t, std::size_t>>{
           {128, 128}, {300, 64}, {64, 100}, {2000, 1}, {300, 9}}) {
    const std::vector<TensorSlot> tensors = {{.rows = rows, .columns = columns, .name = "t"}};
    double ratios = 0.0;
    constexpr int kDraws = 24;
    for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
      AdamVelocity adam(rows * columns, tensors, {});
      std::vector<float> gradient(rows * columns);
      fill_normal(gradient, draw);
      double squares = 0.0;
      for (float& value : gradient) {
        value = 1.0f + 0.3f * value;
        squares += static_cast<double>(value) * static_cast<double>(value);
      }
      adam.prepare(0, gradient);
      double sketch = 0.0;
      for (const float lane : adam.sketches()) {
        sketch += static_cast<double>(lane) * static_cast<double>(lane);
      }
      ratios += sketch / squares / kDraws;
    }
    // The signs are the same in all draws, so what they do to the common part does not average out:
    // 16 squares of normal values have a deviation of 0.35.
    EXPECT_NEAR(ratios, 1.0, 0.9) << rows << " x " << columns;
    EXPECT_GT(ratios, 0.4) << rows << " x " << columns;
  }
}

TEST(AdamVelocity, BeginsWithEqualGradients) {
  const auto tensors = slots({64});
  AdamVelocity adam(64, tensors, {.ranks = 8});
  EXPECT_EQ(adam.ratio(0, 0), 63.0);
  // The first step is the sign of the gradient, an eighth of it from each rank.
  std::vector<float> gradient(64);
  fill_normal(gradient, 1);
  const std::vector<float> before = gradient;
  adam.prepare(0, gradient);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(gradient[i], before[i] > 0.0f ? 0.125f : -0.125f, 1e-5f);
  }
}

TEST(AdamVelocity, WhatIsNotFiniteChangesNothing) {
  const auto tensors = slots({40, 40});
  AdamVelocity adam(80, tensors, {});
  std::vector<float> gradient(80, 0.5f);
  adam.prepare(0, gradient);
  const std::vector<float> velocity(adam.velocity().begin(), adam.velocity().end());
  const std::vector<float> sketches(adam.sketches().begin(), adam.sketches().end());
  gradient.assign(80, 0.25f);
  gradient[3] = std::numeric_limits<float>::quiet_NaN();
  adam.prepare(0, gradient);
  EXPECT_TRUE(std::isnan(gradient[3]));
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(adam.velocity()[i], velocity[i]);
  for (std::size_t i = 40; i < 80; ++i) EXPECT_NE(adam.velocity()[i], velocity[i]);
  for (std::size_t i = 0; i < AdamVelocity::kLanes; ++i) EXPECT_EQ(adam.sketches()[i], sketches[i]);
}

// This rank's mean of a row's squares decays to the least float while other ranks have gradients.
TEST(AdamVelocity, ARowThatIsLongUnseenStaysFinite) {
  const std::vector<TensorSlot> tensors = {{.rows = 2, .columns = 8, .name = "t"}};
  AdamVelocity here(16, tensors, {.beta2 = 0.5, .ranks = 2}), there = {16, tensors, {.ranks = 2}};
  AdamVelocity* const both[] = {&here, &there};
  std::vector<float> gradient(16);
  for (std::uint64_t step = 0; step < 4000; ++step) {
    compare(both, step);
    // The second row has one gradient here, and one column never has any.
    std::ranges::fill(gradient, 1.0f);
    if (step > 0) std::ranges::fill(std::span(gradient).subspan(8), 0.0f);
    gradient[15] = 0.0f;
    here.prepare(0, gradient);
    for (const float u : gradient) ASSERT_TRUE(std::isfinite(u)) << step;
    std::ranges::fill(gradient, 1e6f);
    there.prepare(0, gradient);
  }
}

TEST(AdamVelocity, AZeroGradientIsNoStep) {
  const auto tensors = slots({33});
  AdamVelocity adam(33, tensors, {.ranks = 2});
  std::vector<float> gradient(33);
  AdamVelocity* const both[] = {&adam};
  for (std::uint64_t step = 0; step < 3; ++step) {
    compare(both, step);
    adam.prepare(0, gradient);
    for (const float u : gradient) EXPECT_EQ(u, 0.0f);
  }
}

TEST(AdamVelocity, GoesOnFromItsState) {
  const auto tensors = slots({100, 28});
  AdamVelocity first(128, tensors, {.ranks = 2}), second(128, tensors, {.ranks = 2});
  AdamVelocity* const alone[] = {&first};
  std::vector<float> gradient(128);
  for (std::uint64_t step = 0; step < 5; ++step) {
    compare(alone, step);
    fill_normal(gradient, step);
    first.prepare(0, gradient);
  }
  StateList of_first, of_second;
  first.list_state(of_first);
  second.list_state(of_second);
  ASSERT_EQ(of_first.blocks.size(), of_second.blocks.size());
  for (std::size_t b = 0; b < of_first.blocks.size(); ++b) {
    EXPECT_EQ(of_first.blocks[b].name, of_second.blocks[b].name);
    std::ranges::copy(of_first.blocks[b].bytes, of_second.blocks[b].bytes.begin());
  }
  AdamVelocity* const other[] = {&second};
  compare(alone, 8);  // rows as well
  compare(other, 8);
  std::vector<float> later(128);
  fill_normal(gradient, 9);
  fill_normal(later, 9);
  first.prepare(0, gradient);
  second.prepare(0, later);
  EXPECT_EQ(gradient, later);
}

}  // namespace
}  // namespace dp
