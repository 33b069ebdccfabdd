// Tests the loader: its batches equal what sampler and augmentation say for any number of threads
// and buffers, exceptions reach the reader, and it allocates nothing after its start.
#include "io/images/loader.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "io/images/synthetic.hpp"
#include "kernels/base/error.hpp"

namespace {
std::atomic<std::size_t> allocations{0};
}  // namespace

// Counts every allocation of this program. Not inline: if the compiler sees only one half of a pair
// as malloc() or free(), it warns of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace dp {
namespace {

constexpr std::size_t kImageBytes = kSyntheticShape.values();

const ImageSet& images() {
  static const ImageSet set = make_synthetic(Split::train, 203, 1);
  return set;
}

struct Copy {
  std::vector<float> images;
  std::vector<std::int32_t> labels;
  std::size_t global_samples, step;
  bool operator==(const Copy&) const = default;
};

std::vector<Copy> read_epoch(Loader& loader, std::uint64_t epoch) {
  loader.start_epoch(epoch);
  std::vector<Copy> batches;
  for (std::size_t step = 0; step < loader.steps(); ++step) {
    const Batch& batch = loader.next();
    EXPECT_EQ(batch.step, step);
    EXPECT_EQ(batch.images.size(), batch.samples * kImageBytes);
    EXPECT_EQ(batch.labels.size(), batch.samples);
    batches.push_back({{batch.images.begin(), batch.images.end()},
                       {batch.labels.begin(), batch.labels.end()},
                       batch.global_samples,
                       batch.step});
  }
  return batches;
}

TEST(Loader, DeliversWhatSamplerAndAugmentationSay) {
  const LoaderOptions options{.global_batch = 20, .rank = 1, .ranks = 3, .seed = 9};
  Loader loader(images(), options);
  Sampler sampler({.samples = 203, .global_batch = 20, .rank = 1, .ranks = 3, .seed = 9});
  ASSERT_EQ(loader.steps(), 11u);
  for (const std::uint64_t epoch : {0u, 1u, 5u}) {
    sampler.start_epoch(epoch);
    const std::vector<Copy> batches = read_epoch(loader, epoch);
    for (std::size_t step = 0; step < batches.size(); ++step) {
      ASSERT_EQ(batches[step].labels.size(), sampler.rank_samples(step));
      EXPECT_EQ(batches[step].global_samples, sampler.global_samples(step));
      for (std::size_t k = 0; k < sampler.rank_samples(step); ++k) {
        const std::size_t sample = sampler.sample(step, k);
        std::vector<float> expected(kImageBytes);
        Normalizer(kSyntheticShape)
            .apply(images().image(sample), draw_augmentation({}, kSyntheticShape, 9, epoch, sample),
                   expected);
        EXPECT_EQ(batches[step].labels[k], images().label(sample));
        ASSERT_TRUE(std::equal(
            expected.begin(), expected.end(),
            batches[step].images.begin() + static_cast<std::ptrdiff_t>(k * kImageBytes)));
      }
    }
  }
}

TEST(Loader, TheNumberOfThreadsAndBuffersChangesNothing) {
  LoaderOptions options{.global_batch = 16, .seed = 2};
  Loader one(images(), options);
  const std::vector<Copy> expected = read_epoch(one, 3);
  for (const std::size_t threads : {1u, 2u, 5u}) {
    for (const std::size_t buffers : {0u, 1u, 2u, 9u}) {
      options.threads = threads;
      options.buffers = buffers;
      Loader loader(images(), options);
      EXPECT_EQ(read_epoch(loader, 3), expected) << threads << " threads, " << buffers;
      EXPECT_NE(read_epoch(loader, 4), expected);
      EXPECT_EQ(read_epoch(loader, 3), expected) << "second time";
    }
  }
}

// In the middle of an epoch, with more images than before, too. Nothing is lost or seen twice.
TEST(Loader, SharesChangeFromTheNextBatchOn) {
  for (const std::size_t threads : {1u, 3u}) {
    for (const std::size_t parts : {1u, 2u}) {
      const LoaderOptions options{
          .global_batch = 20, .rank = 1, .ranks = 3, .parts = parts, .seed = 9, .threads = threads};
      Loader loader(images(), options);
      Sampler sampler(
          {.samples = 203, .global_batch = 20, .rank = 1, .ranks = 3, .parts = parts, .seed = 9});
      const std::vector<Shares> changes = {Shares({1, 5, 1}), Shares({9, 1, 9}), Shares()};
      for (const std::uint64_t epoch : {0u, 1u}) {
        sampler.start_epoch(epoch);
        loader.start_epoch(epoch);
        for (std::size_t step = 0; step < loader.steps(); ++step) {
          for (std::size_t part = 0; part < parts; ++part) {
            const Batch& batch = loader.next();
            const StepImages its = sampler.images(step, part);
            ASSERT_EQ(batch.samples, its.count) << "step " << step;
            EXPECT_EQ(batch.first_image, its.first);
            EXPECT_EQ(batch.image_stride, its.stride);
            for (std::size_t k = 0; k < its.count; ++k) {
              EXPECT_EQ(batch.labels[k], images().label(sampler.sample(step, k, part)));
            }
          }
          if (step % 3 == 1) {
            const Shares& next = changes[(step / 3) % changes.size()];
            sampler.set_shares(next);
            loader.set_shares(next);
          }
        }
      }
    }
  }
}

// Several threads fill one batch. If two of them fail, next() throws the earlier image's exception.
TEST(Loader, ThreadsShareABatch) {
  LoaderOptions options{.global_batch = 100, .seed = 2};
  Loader one(images(), options);
  const std::vector<Copy> expected = read_epoch(one, 3);
  for (const std::size_t threads : {2u, 6u, 11u}) {
    for (const std::size_t buffers : {0u, 1u}) {
      options.threads = threads;
      options.buffers = buffers;
      Loader loader(images(), options);
      EXPECT_EQ(read_epoch(loader, 3), expected) << threads << " threads, " << buffers;
    }
  }
  class Failing final : public ImageSource {
   public:
    Failing()
        : ImageSource({.name = "x", .class_names = {"a"}, .shape = {.height = 1, .width = 1}}) {}
    [[nodiscard]] std::size_t count() const noexcept override { return 64; }
    [[nodiscard]] std::int32_t label(std::size_t) const override { return 0; }
    [[nodiscard]] Image read(std::size_t index, const Augmentation&,
                             std::vector<std::uint8_t>& scratch) const override {
      if (index == 20) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (index == 20 || index == 50) throw std::runtime_error(std::to_string(index));
      scratch.resize(3);
      return {scratch, {}};
    }

   protected:
    [[nodiscard]] std::uint64_t hash_images() const override { return 1; }
  };
  const Failing source;
  Loader loader(
      source,
      {.global_batch = 64, .order = SampleOrder::in_order, .augment = std::nullopt, .threads = 4});
  loader.start_epoch(0);
  try {
    loader.next();
    ADD_FAILURE() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "20");
  }
}

TEST(Loader, ABatchStaysUntilTheNextOne) {
  Loader loader(images(), {.global_batch = 8, .threads = 3});
  loader.start_epoch(0);
  for (std::size_t step = 0; step < loader.steps(); ++step) {
    const Batch& batch = loader.next();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(batch.images.data()) % 64, 0u);
    const std::vector<float> before(batch.images.begin(), batch.images.end());
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    EXPECT_TRUE(std::ranges::equal(before, batch.images));
  }
}

TEST(Loader, EvaluationIsPlainAndInOrder) {
  Loader loader(images(),
                {.global_batch = 50, .order = SampleOrder::in_order, .augment = std::nullopt});
  const std::vector<Copy> batches = read_epoch(loader, 7);
  std::vector<float> expected(kImageBytes);
  Normalizer(kSyntheticShape).apply(images().image(51), {}, expected);
  EXPECT_TRUE(
      std::equal(expected.begin(), expected.end(), batches[1].images.begin() + kImageBytes));
  EXPECT_EQ(batches.back().labels.size(), 3u);
}

// Images that are not square, as floats and raw, from a source that decodes into the thread's
// scratch memory and does the shift of the augmentation itself.
class ShiftingSource final : public ImageSource {
 public:
  ShiftingSource()
      : ImageSource({.name = "shifting",
                     .class_names = std::vector<std::string>(1'000, "class"),
                     .shape = {.height = 24, .width = 40},
                     .normalization = {.mean = {0.1f, 0.2f, 0.3f}, .deviation = {1, 2, 4}}}) {}

  [[nodiscard]] std::size_t count() const noexcept override { return 7; }
  [[nodiscard]] std::int32_t label(std::size_t index) const override {
    return 999 - static_cast<std::int32_t>(index);
  }
  [[nodiscard]] Image read(std::size_t index, const Augmentation& crop,
                           std::vector<std::uint8_t>& scratch) const override {
    scratch.resize(std::max(scratch.size(), shape().values()));
    for (std::size_t i = 0; i < shape().values(); ++i) scratch[i] = value(index, crop.shift_x, i);
    return {{scratch.data(), shape().values()}, {.is_flipped = crop.is_flipped}};
  }
  static std::uint8_t value(std::size_t index, int shift, std::size_t i) {
    return static_cast<std::uint8_t>(index * 50 + i * 3 + i / 256 +
                                     static_cast<std::size_t>(shift));
  }

 protected:
  [[nodiscard]] std::uint64_t hash_images() const override { return 1; }
};

TEST(Loader, AViewIsThatOfEveryImageUntilItIsTakenBack) {
  Loader loader(images(),
                {.global_batch = 20, .order = SampleOrder::in_order, .augment = std::nullopt});
  const std::vector<Copy> plain = read_epoch(loader, 0);
  const Augmentation view = {.shift_x = -1, .shift_y = 2, .is_flipped = true};
  loader.set_view(view);
  const std::vector<Copy> seen = read_epoch(loader, 0);
  const Normalizer normalizer(kSyntheticShape);
  for (std::size_t sample = 0; sample < 203; ++sample) {
    std::vector<float> expected(kImageBytes);
    normalizer.apply(images().image(sample), view, expected);
    const Copy& batch = seen[sample / 20];
    const auto first =
        batch.images.begin() + static_cast<std::ptrdiff_t>(sample % 20 * kImageBytes);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), first)) << sample;
    EXPECT_EQ(batch.labels[sample % 20], images().label(sample));
  }
  loader.set_view({});
  EXPECT_EQ(read_epoch(loader, 0), plain);
}

TEST(Loader, TakesAnySourceAndAnyShape) {
  const ShiftingSource source;
  const ImageShape shape = source.shape();
  for (const bool is_raw : {false, true}) {
    Loader loader(source, {.global_batch = 3, .seed = 4, .threads = 2, .is_raw = is_raw});
    Sampler sampler({.samples = 7, .global_batch = 3, .seed = 4});
    sampler.start_epoch(2);
    loader.start_epoch(2);
    for (std::size_t step = 0; step < 3; ++step) {
      const Batch& batch = loader.next();
      ASSERT_EQ(batch.samples, step < 2 ? 3u : 1u);
      EXPECT_EQ(is_raw ? batch.bytes.size() : batch.images.size(), batch.samples * shape.values());
      for (std::size_t k = 0; k < batch.samples; ++k) {
        const std::size_t sample = sampler.sample(step, k);
        const Augmentation drawn = draw_augmentation({}, shape, 4, 2, sample);
        EXPECT_EQ(batch.labels[k], 999 - static_cast<std::int32_t>(sample));
        if (is_raw) {
          EXPECT_EQ(batch.crops[k].shift_x, 0);
          EXPECT_EQ(batch.crops[k].shift_y, 0);
          EXPECT_EQ(batch.crops[k].is_flipped != 0, drawn.is_flipped);
        }
        for (std::size_t i = 0; i < shape.values(); ++i) {
          const std::size_t c = i % 3, x = i / 3 % shape.width, y = i / 3 / shape.width;
          const std::size_t column = drawn.is_flipped && !is_raw ? shape.width - 1 - x : x;
          const std::size_t at = (c * shape.height + y) * shape.width + column;
          const std::uint8_t byte = ShiftingSource::value(sample, drawn.shift_x, at);
          if (is_raw) {
            ASSERT_EQ(batch.bytes[k * shape.values() + at], byte);
          } else {
            const float mean = source.normalization().mean[c];
            const float deviation = source.normalization().deviation[c];
            ASSERT_EQ(batch.images[k * shape.values() + i],
                      (static_cast<float>(byte) / 255.0f - mean) / deviation);
          }
        }
      }
    }
  }
}

TEST(Loader, ARankMayHaveNoSamplesInTheLastStep) {
  Loader loader(images(), {.global_batch = 100, .rank = 3, .ranks = 4});
  const std::vector<Copy> batches = read_epoch(loader, 0);
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_EQ(batches[2].labels.size(), 0u);
  EXPECT_EQ(batches[2].global_samples, 3u);
}

TEST(Loader, AnEpochCanBeBrokenOffAndResumed) {
  Loader loader(images(), {.global_batch = 16, .threads = 2});
  const std::vector<Copy> expected = read_epoch(loader, 6);
  loader.start_epoch(5);
  for (int i = 0; i < 3; ++i) loader.next();
  loader.start_epoch(6, 9);
  for (std::size_t step = 9; step < loader.steps(); ++step) {
    const Batch& batch = loader.next();
    EXPECT_EQ(batch.step, step);
    EXPECT_TRUE(std::ranges::equal(batch.images, expected[step].images));
  }
  EXPECT_THROW(loader.next(), Error);  // past the end: our mistake, not a wait for ever
}

TEST(Loader, EndsCleanlyAtAnyMoment) {
  for (int batches = 0; batches < 12; ++batches) {
    Loader loader(images(), {.global_batch = 16, .threads = 3});
    if (batches == 0) continue;  // not even started
    loader.start_epoch(0);
    for (int i = 1; i < batches; ++i) loader.next();
  }
}

TEST(Loader, AThreadsExceptionReachesTheReaderAtItsStep) {
  LoaderOptions options{.global_batch = 16, .threads = 2};
  std::atomic<bool> fails = true;
  options.on_step = [&](std::size_t step) {
    if (step == 4 && fails) throw std::runtime_error("no such image");
  };
  Loader loader(images(), options);
  loader.start_epoch(0);
  for (int i = 0; i < 4; ++i) EXPECT_NO_THROW(loader.next());
  for (int i = 0; i < 2; ++i) {
    try {
      loader.next();
      ADD_FAILURE() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "no such image");
    }
  }
  fails = false;  // a new epoch starts afresh
  EXPECT_EQ(read_epoch(loader, 1).size(), loader.steps());
}

TEST(Loader, AllocatesNothingAfterItsStart) {
  Loader loader(images(), {.global_batch = 16, .threads = 2});
  loader.start_epoch(0);
  loader.next();
  const std::size_t before = allocations;
  for (std::uint64_t epoch = 1; epoch < 4; ++epoch) {
    loader.start_epoch(epoch);
    for (std::size_t step = 0; step < loader.steps(); ++step) loader.next();
  }
  EXPECT_EQ(allocations, before);
}

// Three parts on two ranks are the batches of six ranks, also in the uneven last step, in which
// some have none. Between epochs the size of steps may change.
TEST(Loader, PartsAreTheBatchesOfMoreRanks) {
  for (const std::size_t global_batch : {12u, 50u}) {  // 203 images: the last step has 11 or 3
    std::vector<std::vector<Copy>> six;
    for (std::size_t rank = 0; rank < 6; ++rank) {
      Loader loader(images(), {.global_batch = global_batch, .rank = rank, .ranks = 6, .seed = 3});
      six.push_back(read_epoch(loader, 1));
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
      Loader loader(images(), {.global_batch = 7,
                               .rank = rank,
                               .ranks = 2,
                               .largest_batch = 30,
                               .seed = 3,
                               .threads = 2});
      static_cast<void>(read_epoch(loader, 0));
      loader.set_batch(global_batch, 3);
      loader.start_epoch(1);
      ASSERT_EQ(loader.parts(), 3u);
      ASSERT_EQ(loader.steps(), six[0].size());
      for (std::size_t step = 0; step < loader.steps(); ++step) {
        for (std::size_t part = 0; part < 3; ++part) {
          const Batch& batch = loader.next();
          EXPECT_EQ(batch.part, part);
          const Copy copy = {{batch.images.begin(), batch.images.end()},
                             {batch.labels.begin(), batch.labels.end()},
                             batch.global_samples,
                             batch.step};
          EXPECT_EQ(copy, six[part * 2 + rank][step]) << step << " " << part;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dp
