// Steps of segments: they take their share of the plan whatever their values are just now.
#include "comm/exchange/segment_rates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "kernels/base/random.hpp"

namespace dp {
namespace {

std::vector<float> normals(std::size_t n, float deviation, std::uint64_t seed) {
  const CounterRng rng(seed, RandomStream::test);
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = deviation * static_cast<float>(normal(rng, i));
  return values;
}

// The entropy of the codes, in bits a value.
double bits_of(const std::vector<float>& values, float step) {
  std::map<long, double> counts;
  for (const float v : values) counts[std::clamp(std::lround(v / step), -127l, 127l)] += 1.0;
  double sum = 0.0;
  for (const auto& [code, count] : counts) {
    const double share = count / static_cast<double>(values.size());
    sum -= share * std::log2(share);
  }
  return sum;
}

TEST(RelativeMagnitudes, BitsAreTheEntropyOfTheCodes) {
  const std::vector<float> values = normals(4'096, 0.37f, 1);
  for (const float steps : {0.25f, 1.0f, 3.0f, 4.5f}) {
    const float step = steps * 0.37f;
    const RelativeMagnitudes magnitudes(values, nullptr, step);
    for (const double octaves : {-1.0, -0.3, 0.0, 0.5, 1.0}) {
      const double want = bits_of(values, step * std::exp2(static_cast<float>(octaves)));
      EXPECT_NEAR(magnitudes.bits(octaves), want, 0.04 * want + 0.002) << steps << " " << octaves;
    }
  }
}

TEST(RelativeMagnitudes, WhatIsEncodedIsTheSumWithTheResidual) {
  const std::vector<float> sums = normals(5'000, 1.0f, 2), residual = normals(5'000, 0.5f, 3);
  std::vector<float> values = sums;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= residual[i];
  EXPECT_NEAR(RelativeMagnitudes(values, residual.data(), 2.0f).bits(0.0),
              RelativeMagnitudes(sums, nullptr, 2.0f).bits(0.0), 1e-3);
}

TEST(RelativeMagnitudes, ZerosTakeNoBits) {
  const std::vector<float> zeros(1'000);
  EXPECT_EQ(RelativeMagnitudes(zeros, nullptr, 1.0f).bits(0.0), 0.0);
  EXPECT_EQ(RelativeMagnitudes({}, nullptr, 1.0f).bits(0.0), 0.0);
}

constexpr std::size_t kLong = 65'536;
constexpr SegmentRates::Plan kPlan{.step = 3.5f, .planned_bits = 0.2, .share_factor = 1.0};

TEST(SegmentRates, BurstsAreEvenedOut) {
  SegmentRates rates(1);
  double least = 1e9, most = 0.0, least_common = 1e9, most_common = 0.0;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const std::vector<float> values = normals(kLong, i % 2 == 0 ? 1.5f : 0.8f, i);
    const double bits = bits_of(values, rates.step_for(0, values, nullptr, kPlan));
    if (i < 20) continue;
    least = std::min(least, bits);
    most = std::max(most, bits);
    least_common = std::min(least_common, bits_of(values, kPlan.step));
    most_common = std::max(most_common, bits_of(values, kPlan.step));
  }
  EXPECT_GT(most_common, 4.0 * least_common);
  EXPECT_LT(most, 1.5 * least);
  // In the mean they are what the common step takes, which shares follow.
  EXPECT_NEAR((least + most) / 2, (least_common + most_common) / 2, 0.25 * most);
}

// Segments of smaller values take fewer bits, as with one step for all.
TEST(SegmentRates, SharesAreThoseOfTheCommonStep) {
  SegmentRates rates(2);
  std::vector<double> taken(2), common(2);
  for (std::uint64_t i = 0; i < 60; ++i) {
    for (std::size_t s = 0; s < 2; ++s) {
      const float burst = i % 3 == 0 ? 1.3f : 1.0f;
      const std::vector<float> values = normals(kLong, (s == 0 ? 1.2f : 0.7f) * burst, 2 * i + s);
      taken[s] += bits_of(values, rates.step_for(s, values, nullptr, kPlan));
      common[s] += bits_of(values, kPlan.step);
    }
  }
  EXPECT_NEAR(taken[0] / taken[1], common[0] / common[1], 0.2 * common[0] / common[1]);
  EXPECT_GT(taken[0], 2.0 * taken[1]);
}

TEST(SegmentRates, AStepIsAtMostAnOctaveFromTheCommonOne) {
  SegmentRates rates(1);
  const auto next = [&](float deviation, SegmentRates::Plan plan = kPlan) {
    return rates.step_for(0, normals(kLong, deviation, 9), nullptr, plan);
  };
  EXPECT_EQ(next(1.0f), kPlan.step);  // the first
  EXPECT_NEAR(next(1'000.0f), 2.0f * kPlan.step, 0.05f);
  EXPECT_NEAR(next(0.01f), 0.5f * kPlan.step, 0.05f);
}

TEST(SegmentRates, APlanThatChangesIsFollowedAtOnce) {
  const std::vector<float> values = normals(kLong, 1.2f, 5);
  for (const double factor : {0.5, 2.0}) {
    SegmentRates rates(1);
    for (int i = 0; i < 20; ++i) static_cast<void>(rates.step_for(0, values, nullptr, kPlan));
    const double before = bits_of(values, rates.step_for(0, values, nullptr, kPlan));
    SegmentRates::Plan plan = kPlan;
    plan.planned_bits *= factor;
    EXPECT_NEAR(bits_of(values, rates.step_for(0, values, nullptr, plan)), factor * before,
                0.1 * factor * before);
  }
  // And what shares have grown too much by is taken back.
  SegmentRates rates(1);
  static_cast<void>(rates.step_for(0, values, nullptr, kPlan));
  const double before = bits_of(values, rates.step_for(0, values, nullptr, kPlan));
  SegmentRates::Plan plan = kPlan;
  plan.share_factor = 0.5;
  EXPECT_NEAR(bits_of(values, rates.step_for(0, values, nullptr, plan)), 0.5 * before,
              0.05 * before);
}

TEST(SegmentRates, WhatIsNotFiniteDoesNoHarm) {
  SegmentRates rates(1);
  const std::vector<float> sound = normals(kLong, 1.2f, 5);
  std::vector<float> bad = sound;
  bad[0] = std::numeric_limits<float>::infinity();
  bad[1] = std::numeric_limits<float>::quiet_NaN();
  bad[2] = std::numeric_limits<float>::max();
  static_cast<void>(rates.step_for(0, sound, nullptr, kPlan));
  const float step = rates.step_for(0, sound, nullptr, kPlan);
  for (const std::vector<float>& values : {bad, std::vector<float>(kLong)}) {
    const float its = rates.step_for(0, values, nullptr, kPlan);
    EXPECT_TRUE(its >= kPlan.step / 2.01f && its <= kPlan.step * 2.01f) << its;
  }
  for (int i = 0; i < 20; ++i) static_cast<void>(rates.step_for(0, sound, nullptr, kPlan));
  EXPECT_NEAR(rates.step_for(0, sound, nullptr, kPlan), step, 0.1f * step);
}

TEST(SegmentRates, GoOnFromTheirState) {
  SegmentRates first(3), second(3);
  for (std::uint64_t i = 0; i < 5; ++i) {
    for (std::size_t s = 0; s < 3; ++s) {
      static_cast<void>(first.step_for(s, normals(3'000, 1.0f, 3 * i + s), nullptr, kPlan));
    }
  }
  StateList from, to;
  first.list_state(from, "bucket0/");
  second.list_state(to, "bucket0/");
  ASSERT_EQ(from.blocks.size(), 1u);
  EXPECT_EQ(from.blocks[0].share, StateShare::own);
  std::ranges::copy(from.blocks[0].bytes, to.blocks[0].bytes.begin());
  for (std::size_t s = 0; s < 3; ++s) {
    const std::vector<float> values = normals(3'000, 1.1f, 90 + s);
    EXPECT_EQ(first.step_for(s, values, nullptr, kPlan),
              second.step_for(s, values, nullptr, kPlan));
  }
}

}  // namespace
}  // namespace dp
