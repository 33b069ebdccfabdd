// Tests that drawn images are reproducible and balanced, and that class means say little.
#include "io/images/synthetic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace dp {
namespace {

std::uint64_t fnv1a(std::span<const std::uint8_t> bytes, std::uint64_t hash) {
  for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001B3u;
  return hash;
}

std::uint64_t fnv1a(const ImageSet& set) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (std::size_t i = 0; i < set.count(); ++i) hash = fnv1a(set.image(i), hash);
  return hash;
}

TEST(Synthetic, AnImageFollowsFromSeedSplitAndIndexAlone) {
  const ImageSet small = make_synthetic(Split::train, 40, 7);
  const ImageSet large = make_synthetic(Split::train, 100, 7, 3);
  for (std::size_t i = 0; i < small.count(); ++i) {
    EXPECT_TRUE(std::ranges::equal(small.image(i), large.image(i))) << i;
    std::array<std::uint8_t, kSyntheticShape.values()> alone;
    EXPECT_EQ(draw_synthetic(7, Split::train, i, alone), small.label(i));
    EXPECT_TRUE(std::ranges::equal(small.image(i), alone)) << i;
  }
}

TEST(Synthetic, SeedsSplitsAndIndicesGiveDifferentImages) {
  std::set<std::uint64_t> hashes;
  std::size_t images = 0;
  for (const std::uint64_t seed : {0u, 1u}) {
    for (const Split split : {Split::train, Split::test}) {
      const ImageSet set = make_synthetic(split, 200, seed);
      for (std::size_t i = 0; i < set.count(); ++i, ++images) hashes.insert(fnv1a(set.image(i), 1));
    }
  }
  EXPECT_EQ(hashes.size(), images);
}

// A seed must always give the same images, because published results name only the seed.
TEST(Synthetic, TheImagesOfASeedNeverChange) {
  EXPECT_EQ(fnv1a(make_synthetic(Split::train, 1'000, 0)), 11812474393438085788u);
}

TEST(Synthetic, DefaultsAndBalance) {
  const Dataset data = load_dataset("synthetic", {.threads = 2});
  EXPECT_EQ(data.train->count(), 12'800u);
  EXPECT_EQ(data.test->count(), 2'000u);
  ASSERT_EQ(data.train->classes(), 10u);
  EXPECT_EQ(data.train->class_names()[1], "ring");
  std::array<int, 10> counts{};
  for (std::size_t i = 0; i < data.train->count(); ++i) {
    ++counts[static_cast<std::size_t>(data.train->label(i))];
  }
  for (const int count : counts) EXPECT_EQ(count, 1'280);
  const Dataset few = load_dataset("synthetic", {.limit_train = 3, .limit_test = 1});
  EXPECT_EQ(few.train->count(), 3u);
  EXPECT_EQ(few.test->count(), 1u);
}

// The nearest class mean is a linear classifier. Colours are drawn without regard to the class, so
// its accuracy must be close to chance. Otherwise the set could be learnt without looking at
// shapes.
TEST(Synthetic, ClassMeansSayLittle) {
  const ImageSet train = make_synthetic(Split::train, 3'000, 0),
                 test = make_synthetic(Split::test, 500, 0);
  std::vector<std::array<double, kSyntheticShape.values()>> means(10);
  for (std::size_t i = 0; i < train.count(); ++i) {
    auto& mean = means[static_cast<std::size_t>(train.label(i))];
    for (std::size_t p = 0; p < kSyntheticShape.values(); ++p) mean[p] += train.image(i)[p] / 300.0;
  }
  int right = 0;
  for (std::size_t i = 0; i < test.count(); ++i) {
    double nearest = INFINITY;
    int guess = -1;
    for (int k = 0; k < 10; ++k) {
      double distance = 0;
      for (std::size_t p = 0; p < kSyntheticShape.values(); ++p) {
        const double d = test.image(i)[p] - means[static_cast<std::size_t>(k)][p];
        distance += d * d;
      }
      if (distance < nearest) {
        nearest = distance;
        guess = k;
      }
    }
    right += guess == test.label(i);
  }
  EXPECT_LT(right, 150);  // of 500; chance gives 50
}

}  // namespace
}  // namespace dp
