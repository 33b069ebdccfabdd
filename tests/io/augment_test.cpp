#include "io/augment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr ImageShape kShape{.height = 24, .width = 40};
constexpr std::size_t kValues = kShape.values();

std::vector<std::uint8_t> test_image(const ImageShape& shape) {
  std::vector<std::uint8_t> image(shape.values());
  for (std::size_t i = 0; i < image.size(); ++i) {
    image[i] = static_cast<std::uint8_t>(i * 37 + i / 31 * 5 + i / 1021 * 11);
  }
  return image;
}

// The definition: pad, cut, mirror, scale, normalise, one step after the other.
std::vector<float> reference(const ImageShape& shape, const std::vector<std::uint8_t>& image,
                             const Augmentation& a, const Normalization& n) {
  const int height = static_cast<int>(shape.height), width = static_cast<int>(shape.width);
  std::vector<float> out;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (std::size_t c = 0; c < 3; ++c) {
        const int column = a.is_flipped ? width - 1 - x : x;
        const int py = y + kCropPadding + a.shift_y, px = column + kCropPadding + a.shift_x;
        const int sy = py - kCropPadding, sx = px - kCropPadding;
        const bool inside = sy >= 0 && sy < height && sx >= 0 && sx < width;
        const std::uint8_t byte =
            inside ? image[c * shape.pixels() + static_cast<std::size_t>(sy * width + sx)]
                   : std::uint8_t{0};
        const float scaled = static_cast<float>(byte) / 255.0f;
        out.push_back((scaled - n.mean[c]) / n.deviation[c]);
      }
    }
  }
  return out;
}

// CIFAR's size, others that are not square, and images smaller than a shift.
TEST(Normalizer, EveryShiftAndFlipEqualsTheDefinition) {
  const Normalization normalization{.mean = {0.1f, 0.5f, 0.9f}, .deviation = {0.2f, 0.3f, 0.7f}};
  for (const auto& [height, width] :
       {std::pair<std::size_t, std::size_t>{32, 32}, {24, 40}, {40, 24}, {3, 9}, {9, 2}, {1, 1}}) {
    const ImageShape shape{.height = height, .width = width};
    const std::vector<std::uint8_t> image = test_image(shape);
    const Normalizer normalizer(shape, normalization);
    for (int shift_y = -4; shift_y <= 4; ++shift_y) {
      for (int shift_x = -4; shift_x <= 4; ++shift_x) {
        for (const bool is_flipped : {false, true}) {
          const Augmentation a{.shift_x = shift_x, .shift_y = shift_y, .is_flipped = is_flipped};
          std::vector<float> out(shape.values() + 2, NAN);
          out.front() = out.back() = 777;
          normalizer.apply(image, a, std::span(out).subspan(1, shape.values()));
          const std::vector<float> expected = reference(shape, image, a, normalization);
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + 1))
              << height << "x" << width << ": " << shift_x << " " << shift_y << " " << is_flipped;
          ASSERT_EQ(out.front(), 777);
          ASSERT_EQ(out.back(), 777);
        }
      }
    }
  }
}

TEST(Normalizer, PaddingIsBlackBeforeNormalisation) {
  const std::vector<std::uint8_t> white(kValues, 255);
  std::vector<float> out(kValues);
  Normalizer(kShape).apply(white, {.shift_x = -4, .shift_y = 0}, out);
  EXPECT_FLOAT_EQ(out[0], -0.4914f / 0.2023f);
  EXPECT_FLOAT_EQ(out[1], -0.4822f / 0.1994f);
  EXPECT_FLOAT_EQ(out[4 * 3 + 2], (1 - 0.4465f) / 0.2010f);
}

TEST(Normalizer, WrongSizesAreRefused) {
  std::vector<std::uint8_t> image(kValues);
  std::vector<float> out(kValues - 1);
  EXPECT_THROW(Normalizer(kShape).apply(image, {}, out), Error);
  EXPECT_THROW(Normalizer({.channels = 1, .height = 2, .width = 2}), Error);
}

TEST(Augmentation, FollowsFromSeedEpochAndSample) {
  const auto key = [](std::uint64_t seed, std::uint64_t epoch, std::size_t sample) {
    const Augmentation a = draw_augmentation(seed, epoch, sample);
    return (a.shift_x + 4) * 18 + (a.shift_y + 4) * 2 + (a.is_flipped ? 1 : 0);
  };
  int same_epoch = 0, same_seed = 0, same_sample = 0;
  for (std::size_t i = 0; i < 1'000; ++i) {
    EXPECT_EQ(key(1, 2, i), key(1, 2, i));
    same_seed += key(1, 2, i) == key(3, 2, i);
    same_epoch += key(1, 2, i) == key(1, 3, i);
    same_sample += key(1, 2, i) == key(1, 2, i + 1);
  }
  // There are 162 possibilities, so about 6 in 1,000 agree by chance.
  for (const int same : {same_epoch, same_seed, same_sample}) EXPECT_LT(same, 25);
}

// All 162 augmentations are equally likely: chi-square with 161 degrees of freedom stays under
// 238 with probability 0.9999.
TEST(Augmentation, IsUniform) {
  constexpr int kDraws = 162'000;
  std::vector<int> counts(162);
  for (std::size_t i = 0; i < kDraws; ++i) {
    const Augmentation a = draw_augmentation(0, 1, i);
    ASSERT_LE(std::abs(a.shift_x), 4);
    ASSERT_LE(std::abs(a.shift_y), 4);
    ++counts[static_cast<std::size_t>((a.shift_x + 4) * 18 + (a.shift_y + 4) * 2 +
                                      (a.is_flipped ? 1 : 0))];
  }
  double chi_square = 0;
  for (const int n : counts) chi_square += (n - 1'000.0) * (n - 1'000.0) / 1'000.0;
  EXPECT_LT(chi_square, 238);
}

}  // namespace
}  // namespace dp
