// Steps in which batch normalisation has a single image, what is said of them, and which layers
// have maps of 1x1.
#include "app/training/setup/single_images.hpp"

#include <gtest/gtest.h>

#include "net/models/registry.hpp"
#include "net/single_values.hpp"

namespace dp {
namespace {

using Where = SingleImages::Where;

void expect(const ImageDivision& division, Where where, std::size_t single = 0,
            std::size_t steps = 0) {
  const SingleImages found = find_single_images(division);
  EXPECT_EQ(found.where, where);
  EXPECT_EQ(found.single_steps, single);
  EXPECT_EQ(found.steps, steps);
}

TEST(SingleImages, OneRank) {
  expect({.samples = 16, .batches = {{8, 1}}}, Where::nowhere);
  expect({.samples = 18, .batches = {{8, 1}}}, Where::nowhere);
  expect({.samples = 17, .batches = {{8, 1}}}, Where::in_some_steps, 1, 3);
  expect({.samples = 8, .batches = {{1, 1}}}, Where::in_every_step, 8, 8);
  expect({.samples = 1, .batches = {{8, 1}}}, Where::in_every_step, 1, 1);
}

TEST(SingleImages, RanksOnTheirOwn) {
  expect({.samples = 8, .ranks = 2, .batches = {{4, 1}}}, Where::nowhere);
  expect({.samples = 8, .ranks = 2, .batches = {{2, 1}}}, Where::in_every_step, 4, 4);
  // One of them.
  expect({.samples = 9, .ranks = 2, .batches = {{3, 1}}}, Where::in_every_step, 3, 3);
  expect({.samples = 11, .ranks = 2, .batches = {{4, 1}}}, Where::in_some_steps, 1, 3);
  // A rank without images has no values, the other one has two.
  expect({.samples = 10, .ranks = 2, .batches = {{8, 1}}}, Where::in_some_steps, 1, 2);
  expect({.samples = 12, .ranks = 2, .batches = {{8, 1}}}, Where::nowhere);
}

TEST(SingleImages, RanksTogether) {
  expect({.samples = 8, .ranks = 2, .sync_bn = true, .batches = {{2, 1}}}, Where::nowhere);
  expect({.samples = 9, .ranks = 2, .sync_bn = true, .batches = {{2, 1}}}, Where::in_some_steps, 1,
         5);
  expect({.samples = 8, .ranks = 1, .sync_bn = true, .batches = {{1, 1}}}, Where::in_every_step, 8,
         8);
  expect({.samples = 11, .ranks = 2, .sync_bn = true, .batches = {{4, 1}}}, Where::nowhere);
}

TEST(SingleImages, Parts) {
  expect({.samples = 16, .batches = {{4, 2}}}, Where::nowhere);
  expect({.samples = 16, .batches = {{4, 4}}}, Where::in_every_step, 4, 4);
  expect({.samples = 12, .batches = {{3, 2}}}, Where::in_every_step, 4, 4);  // of 2 and of 1
  expect({.samples = 10, .batches = {{8, 2}}}, Where::in_some_steps, 1, 2);  // of 1 and of 1
  expect({.samples = 12, .ranks = 2, .sync_bn = true, .batches = {{3, 2}}}, Where::in_every_step, 4,
         4);  // of 2, of both ranks, and of 1
}

TEST(SingleImages, BatchesOfASchedule) {
  expect({.samples = 16, .batches = {{1, 1}, {8, 1}}}, Where::in_some_steps, 16, 16);
  expect({.samples = 33, .batches = {{8, 1}, {16, 1}}}, Where::in_some_steps, 1, 3);
  expect({.samples = 1, .batches = {{1, 1}, {8, 1}}}, Where::in_every_step, 1, 1);
  EXPECT_EQ(find_single_images({.samples = 33, .batches = {{8, 1}, {16, 1}}}).batch.images, 16u);
}

std::string text(const ImageDivision& division, const SingleImageRemedies& remedies,
                 const std::vector<std::string>& layers = {"layer4.0.bn1"}) {
  return describe_single_images(find_single_images(division), division, layers, remedies);
}

constexpr const char* kWhat =
    "a rank computes one image alone; batch normalisation in layer4.0.bn1 (maps of 1x1) then has "
    "one "
    "value per channel, and its output is the same for all images; ";

TEST(SingleImages, ErrorsNameLayerAndRemedy) {
  EXPECT_EQ(text({.samples = 8, .batches = {{1, 1}}}, {.batch_value = 1}),
            std::string("--batch-size 1: in every step ") + kWhat +
                "use a larger --batch-size, several ranks with --sync-bn on or another --model");
  EXPECT_EQ(text({.samples = 8, .ranks = 2, .batches = {{2, 1}}},
                 {.batch = "--global-batch", .batch_value = 2, .has_image_size = true}),
            std::string("--global-batch 2: in every step ") + kWhat +
                "use a larger --global-batch, --sync-bn on or a larger --image-size");
  EXPECT_EQ(text({.samples = 1, .batches = {{8, 1}}}, {.batch_value = 8, .can_sync_bn = false}),
            std::string("1 training image: in every step ") + kWhat +
                "use more training images or another --model");
  EXPECT_EQ(
      text({.samples = 8, .ranks = 2, .batches = {{2, 1}}},
           {.batch_value = 2, .can_sync_bn = false, .goes_on = true}),
      std::string("2 ranks for a batch of 2 images: in every step ") + kWhat + "use fewer ranks");
}

// The cause is the option that made the batch, and the remedies are those that help.
TEST(SingleImages, ErrorsNameTheCause) {
  const auto begin = [](const std::string& text) {
    return text.substr(0, text.find(": in every"));
  };
  const auto remedies = [](const std::string& text) {
    return text.substr(text.find("; use ") + 6);
  };
  const SingleImageRemedies listed = {.batch_value = 8, .batch_schedule = "1:1"};
  std::string all = text({.samples = 8, .batches = {{1, 1, true}}}, listed);
  EXPECT_EQ(begin(all), "--batch-schedule 1:1");
  EXPECT_EQ(remedies(all),
            "larger batches in --batch-schedule, several ranks with --sync-bn on or another "
            "--model");
  all = text({.samples = 8, .ranks = 2, .batches = {{2, 1}, {3, 1, true}}},
             {.batch_value = 1, .batch_schedule = "2:3"});
  EXPECT_EQ(begin(all), "--batch-size 1 with --batch-schedule 2:3");
  EXPECT_EQ(remedies(all),
            "a larger --batch-size and larger batches in --batch-schedule, --sync-bn on or another "
            "--model");
  // The parts of --accumulate: not where --batch-size says how large they are.
  all = text({.samples = 8, .batches = {{4, 4}}},
             {.batch = "--global-batch", .batch_value = 4, .accumulate = 4});
  EXPECT_EQ(begin(all), "--global-batch 4 with --accumulate 4");
  EXPECT_TRUE(remedies(all).starts_with("a larger --global-batch, a smaller --accumulate, "));
  all = text({.samples = 8, .batches = {{4, 4, true}}},
             {.batch_value = 2, .batch_schedule = "1:4", .accumulate = 4});
  EXPECT_EQ(begin(all), "--batch-schedule 1:4 with --accumulate 4");
  all = text({.samples = 8, .batches = {{4, 4}}}, {.batch_value = 1, .accumulate = 4});
  EXPECT_EQ(begin(all), "--batch-size 1");
  EXPECT_EQ(remedies(all).find("--accumulate"), std::string::npos);
  // Too few images, whatever the batch.
  all = text({.samples = 4, .batches = {{8, 4}}},
             {.batch = "--global-batch", .batch_value = 8, .accumulate = 4});
  EXPECT_EQ(begin(all), "4 training images with --accumulate 4");
  EXPECT_TRUE(remedies(all).starts_with("more training images, a smaller --accumulate, "));
  all = text({.samples = 2, .ranks = 2, .batches = {{16, 1}}}, {.batch_value = 8});
  EXPECT_EQ(begin(all), "2 training images");
  EXPECT_EQ(remedies(all), "more training images, --sync-bn on or another --model");
  all = text({.samples = 1, .batches = {{1, 1}}}, {.batch_value = 1});
  EXPECT_EQ(begin(all), "--batch-size 1");
  EXPECT_TRUE(remedies(all).starts_with("more training images and a larger --batch-size, "));
}

TEST(SingleImages, WarningsNameLayerAndRemedy) {
  EXPECT_EQ(text({.samples = 17, .batches = {{8, 1}}}, {}),
            std::string("in 1 of 3 steps of an epoch (batch of 8) ") + kWhat +
                "another --batch-size, another --limit-train or another --model avoids it");
  EXPECT_TRUE(text({.samples = 11, .ranks = 2, .batches = {{4, 1}}}, {})
                  .ends_with("another --limit-train, --sync-bn on or another --model avoids it"));
  // One image for both ranks.
  const std::string together = text({.samples = 9, .ranks = 2, .batches = {{4, 1}}}, {});
  EXPECT_EQ(together.find("--sync-bn"), std::string::npos);
  EXPECT_NE(text({.samples = 9, .ranks = 2, .sync_bn = true, .batches = {{4, 1}}}, {})
                .find("all ranks together compute one image alone"),
            std::string::npos);
}

TEST(SingleImages, WarningsNameTheCause) {
  const auto remedies = [](const std::string& text) { return text.substr(text.find("; ") + 2); };
  // A whole step and a last step, in one run.
  std::string all = text({.samples = 8, .batches = {{4, 1}, {1, 1, true}}}, {});
  EXPECT_TRUE(all.starts_with("in 8 of 8 steps of an epoch (batch of 1) "));
  all = all.substr(all.find("is the same for all images"));
  EXPECT_EQ(remedies(all), "larger batches in --batch-schedule or another --model avoids it");
  all = text({.samples = 8, .batches = {{1, 1}, {4, 1, true}}}, {});
  all = all.substr(all.find("is the same for all images"));
  EXPECT_EQ(remedies(all), "a larger --batch-size or another --model avoids it");
  all = text({.samples = 9, .batches = {{3, 1}, {4, 1, true}}}, {});
  all = all.substr(all.find("is the same for all images"));
  EXPECT_EQ(remedies(all),
            "another --batch-schedule, another --limit-train or another --model avoids it");
  // Fewer parts have more images.
  all = text({.samples = 10, .batches = {{8, 2}}},
             {.batch = "--global-batch", .batch_value = 8, .accumulate = 2});
  EXPECT_NE(all.find(", a smaller --accumulate "), std::string::npos);
}

// A checkpoint decides all but the number of ranks.
TEST(SingleImages, RunsThatGoOn) {
  const SingleImageRemedies can = {.batch_value = 4, .goes_on = true};
  EXPECT_TRUE(text({.samples = 11, .ranks = 2, .batches = {{4, 1}}}, can)
                  .ends_with("all images; fewer ranks avoid it"));
  EXPECT_TRUE(text({.samples = 9, .ranks = 2, .batches = {{4, 1}}}, can)
                  .ends_with("and its output is the same for all images"));
  EXPECT_TRUE(text({.samples = 8, .batches = {{1, 1}}}, can)
                  .starts_with("1 rank for a batch of 1 image: in every step "));
}

TEST(SingleImages, ManyLayers) {
  const ImageDivision division = {.samples = 8, .batches = {{1, 1}}};
  EXPECT_NE(text(division, {}, {"a", "b"}).find("in a and 1 more layer ("), std::string::npos);
  EXPECT_NE(text(division, {}, {"a", "b", "c"}).find("in a and 2 more layers ("),
            std::string::npos);
}

std::vector<std::string> layers_of(const char* model, std::size_t pixels) {
  return net::norms_of_single_values(
      net::make_model(model, {.image = {.height = pixels, .width = pixels}, .classes = 10}));
}

TEST(SingleImages, MapsOfModels) {
  EXPECT_TRUE(layers_of("resnet20", 32).empty());
  EXPECT_TRUE(layers_of("vgg16-bn", 32).empty());  // 2x2, pooled after the last one
  EXPECT_TRUE(layers_of("airbench94", 32).empty());
  EXPECT_TRUE(layers_of("vgg16", 32).empty());
  EXPECT_TRUE(layers_of("resnet18-imagenet", 64).empty());
  EXPECT_EQ(layers_of("resnet18-imagenet", 32),
            (std::vector<std::string>{"layer4.0.bn1", "layer4.0.downsample.1", "layer4.0.bn2",
                                      "layer4.1.bn1", "layer4.1.bn2"}));
  EXPECT_EQ(layers_of("resnet20", 4).front(), "layer3.0.bn1");
}

}  // namespace
}  // namespace dp
