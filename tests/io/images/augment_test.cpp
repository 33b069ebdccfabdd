// Compares augmentation with its definition, step by step, and tests that draws are reproducible
// and uniform.
#include "io/images/augment.hpp"

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

// The reflected index, found step by step.
int reflected(int at, int size) {
  int place = 0, step = at < 0 ? -1 : 1;
  for (int i = 0; i != at; i += at < 0 ? -1 : 1) {
    if (place + step < 0 || place + step >= size) step = -step;
    place += step;
  }
  return place;
}

// The definition, step by step: pad, cut, mirror, scale, normalise.
std::vector<float> reference(const ImageShape& shape, const std::vector<std::uint8_t>& image,
                             const Augmentation& a, const Normalization& n) {
  const int height = static_cast<int>(shape.height), width = static_cast<int>(shape.width);
  std::vector<float> out;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (std::size_t c = 0; c < 3; ++c) {
        const int column = a.is_flipped ? width - 1 - x : x;
        int sy = y + a.shift_y, sx = column + a.shift_x;
        if (a.is_reflected) {
          sy = reflected(sy, height);
          sx = reflected(sx, width);
        }
        if (y >= a.cut_y && y < a.cut_y + a.cut_side && x >= a.cut_x && x < a.cut_x + a.cut_side) {
          out.push_back(0);
          continue;
        }
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

// Every shift that mirrored padding allows, with a cutout that goes through the image.
TEST(Normalizer, ReflectionAndCutoutEqualTheDefinition) {
  for (const auto& [height, width] :
       {std::pair<std::size_t, std::size_t>{32, 32}, {6, 9}, {9, 5}, {3, 3}}) {
    const ImageShape shape{.height = height, .width = width};
    const std::vector<std::uint8_t> image = test_image(shape);
    const Normalizer normalizer(shape);
    const int most = std::min(4, static_cast<int>(std::min(height, width)) - 1);
    int turn = 0;
    for (int shift_y = -most; shift_y <= most; ++shift_y) {
      for (int shift_x = -most; shift_x <= most; ++shift_x) {
        for (const bool is_flipped : {false, true}) {
          const int side = turn++ % 4;
          const Augmentation a{.shift_x = shift_x,
                               .shift_y = shift_y,
                               .is_flipped = is_flipped,
                               .is_reflected = true,
                               .cut_x = turn % (static_cast<int>(width) - side + 1),
                               .cut_y = turn % (static_cast<int>(height) - side + 1),
                               .cut_side = side};
          std::vector<float> out(shape.values());
          normalizer.apply(image, a, out);
          ASSERT_EQ(out, reference(shape, image, a, {}))
              << height << "x" << width << ": " << shift_x << " " << shift_y << " " << is_flipped;
        }
      }
    }
  }
}

// torch.nn.functional.pad([[0, 1, 2, 3]], (3, 3), mode="reflect")
TEST(Normalizer, ReflectionIsPyTorchs) {
  const std::vector<int> expected = {3, 2, 1, 0, 1, 2, 3, 2, 1, 0};
  for (int at = -3; at < 7; ++at) {
    EXPECT_EQ(reflected_index(at, 4), expected[static_cast<std::size_t>(at + 3)]) << at;
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

constexpr ImageShape kSquare{.height = 32, .width = 32};

Augmentation draw(std::uint64_t seed, std::uint64_t epoch, std::size_t sample) {
  return draw_augmentation({}, kSquare, seed, epoch, sample);
}

TEST(Augmentation, FollowsFromSeedEpochAndSample) {
  const auto key = [](std::uint64_t seed, std::uint64_t epoch, std::size_t sample) {
    const Augmentation a = draw(seed, epoch, sample);
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
    const Augmentation a = draw(0, 1, i);
    ASSERT_LE(std::abs(a.shift_x), 4);
    ASSERT_LE(std::abs(a.shift_y), 4);
    ++counts[static_cast<std::size_t>((a.shift_x + 4) * 18 + (a.shift_y + 4) * 2 +
                                      (a.is_flipped ? 1 : 0))];
  }
  double chi_square = 0;
  for (const int n : counts) chi_square += (n - 1'000.0) * (n - 1'000.0) / 1'000.0;
  EXPECT_LT(chi_square, 238);
}

TEST(Augmentation, AlternatingFlipShowsBothSidesInTwoEpochs) {
  const AugmentationRule rule{.flip = AugmentationRule::Flip::alternate};
  int flipped = 0;
  for (std::size_t i = 0; i < 1'000; ++i) {
    const auto is_flipped = [&](std::uint64_t epoch) {
      return draw_augmentation(rule, kSquare, 3, epoch, i).is_flipped;
    };
    for (std::uint64_t epoch = 1; epoch < 5; ++epoch) {
      EXPECT_NE(is_flipped(epoch), is_flipped(epoch + 1)) << i;
    }
    flipped += is_flipped(1) ? 1 : 0;
  }
  EXPECT_NEAR(flipped, 500, 65);  // four standard deviations
}

TEST(Augmentation, WithoutFlipAndPaddingImagesStayAsTheyAre) {
  const AugmentationRule rule{.crop_padding = 0, .flip = AugmentationRule::Flip::off};
  for (std::size_t i = 0; i < 100; ++i) {
    const Augmentation a = draw_augmentation(rule, kSquare, 3, 1, i);
    EXPECT_TRUE(a.shift_x == 0 && a.shift_y == 0 && !a.is_flipped && a.cut_side == 0);
  }
}

// Each place inside of the image is equally likely: 25 x 17 places, chi-square with 424 degrees of
// freedom stays under 540 with probability 0.9999.
TEST(Augmentation, CutoutIsUniform) {
  const AugmentationRule rule{.cutout = 16};
  std::vector<int> counts(std::size_t{17} * 25);
  for (std::size_t i = 0; i < 42'500; ++i) {
    const Augmentation a = draw_augmentation(rule, {.height = 32, .width = 40}, 3, 1, i);
    ASSERT_EQ(a.cut_side, 16);
    ASSERT_TRUE(a.cut_x >= 0 && a.cut_x <= 24 && a.cut_y >= 0 && a.cut_y <= 16);
    ++counts[static_cast<std::size_t>(a.cut_y * 25 + a.cut_x)];
  }
  double chi_square = 0;
  for (const int n : counts) chi_square += (n - 100.0) * (n - 100.0) / 100.0;
  EXPECT_LT(chi_square, 540);
}

TEST(Augmentation, KnowsWhichImagesARuleFits) {
  EXPECT_FALSE(fits({.crop_padding = 32, .is_reflected = true}, kSquare));
  EXPECT_FALSE(fits({.cutout = 33}, kSquare));
  EXPECT_TRUE(fits({.crop_padding = 31, .is_reflected = true, .cutout = 32}, kSquare));
  EXPECT_TRUE(fits({.crop_padding = 100}, kSquare));
}

}  // namespace
}  // namespace dp
