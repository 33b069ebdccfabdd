#include "io/images/image_source.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "io/images/dataset.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Labels = std::vector<std::int32_t>;
constexpr ImageShape kShape{.height = 2, .width = 3};

ImageFacts facts() { return {.name = "x", .class_names = {"a", "b"}, .shape = kShape}; }

TEST(ImageSet, ContradictionsAreOurMistake) {
  EXPECT_THROW(ImageSet(facts(), Bytes(18), {2}), Error);
  EXPECT_THROW(ImageSet(facts(), Bytes(18), {-1}), Error);
  EXPECT_THROW(ImageSet(facts(), Bytes(17), {0}), Error);
  const ImageSet set(facts(), Bytes(18), {0});
  EXPECT_THROW(static_cast<void>(set.image(1)), Error);
  EXPECT_THROW(static_cast<void>(set.label(1)), Error);
}

TEST(ImageSet, ReadsWithoutACopyAndLeavesTheCropToTheCaller) {
  Bytes pixels(36), scratch;
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i);
  const ImageSet set(facts(), pixels, {0, 1});
  const ImageSource::Image image =
      set.read(1, {.shift_x = 2, .shift_y = -1, .is_flipped = true}, scratch);
  EXPECT_EQ(Bytes(image.bytes.begin(), image.bytes.end()),
            Bytes(pixels.begin() + 18, pixels.end()));
  EXPECT_EQ(image.rest.shift_x, 2);
  EXPECT_EQ(image.rest.shift_y, -1);
  EXPECT_TRUE(image.rest.is_flipped);
  EXPECT_TRUE(scratch.empty());
}

TEST(ImageSet, HoldsMoreClassesThanAByteCounts) {
  ImageFacts many = facts();
  many.class_names.assign(70'000, "class");
  const ImageSet set(many, Bytes(36), {69'999, 256});
  EXPECT_EQ(set.classes(), 70'000u);
  EXPECT_EQ(set.label(0), 69'999);
  EXPECT_EQ(set.label(1), 256);
  // Labels that agree in their lowest byte are not the same.
  EXPECT_NE(set.content_hash(), ImageSet(many, Bytes(36), {69'999, 0}).content_hash());
}

TEST(ContentHash, TellsApartWhatTrainingWouldSee) {
  const auto set = [](const std::function<void(ImageFacts&, Bytes&, Labels&)>& change) {
    ImageFacts f = facts();
    Bytes pixels(36, 3);
    Labels labels(2, 0);
    change(f, pixels, labels);
    return std::make_unique<const ImageSet>(f, pixels, labels);
  };
  const auto same = [](ImageFacts&, Bytes&, Labels&) {};
  const auto hash = [](std::unique_ptr<const ImageSet> train,
                       std::unique_ptr<const ImageSet> test) {
    return content_hash({.train = std::move(train), .test = std::move(test)});
  };
  const std::function<void(ImageFacts&, Bytes&, Labels&)> changes[] = {
      [](ImageFacts& f, Bytes&, Labels&) { f.name = "y"; },
      [](ImageFacts& f, Bytes&, Labels&) { f.class_names[1] = "c"; },
      [](ImageFacts& f, Bytes&, Labels&) { std::swap(f.shape.height, f.shape.width); },
      [](ImageFacts& f, Bytes&, Labels&) { f.normalization.deviation[2] = 0.5f; },
      [](ImageFacts&, Bytes& pixels, Labels&) { pixels.back() = 4; },
      [](ImageFacts&, Bytes&, Labels& labels) { labels.front() = 1; },
      [](ImageFacts&, Bytes& pixels, Labels& labels) {
        pixels.resize(54, 3);
        labels.push_back(0);
      }};
  const std::uint64_t usual = hash(set(same), set(same));
  EXPECT_EQ(hash(set(same), set(same)), usual);
  for (const auto& change : changes) {
    const std::size_t number = static_cast<std::size_t>(&change - changes);
    const std::uint64_t train = hash(set(change), set(same)), test = hash(set(same), set(change));
    EXPECT_NE(train, usual) << number;
    EXPECT_NE(test, usual) << number;
    EXPECT_NE(train, test) << number;
  }
}

}  // namespace
}  // namespace dp
