// Prepares batches ahead of time: threads decode, augment and normalise while the network computes.
// If a GPU augments and normalises, batches are raw: they hold the bytes and the crop of every
// image.
//
// The loader owns a ring of buffers that are allocated once. Each holds this rank's batch for one
// step, or one part of it. Threads fill the buffers in the order of the steps, several threads per
// step; next() hands them out in the same order. The contents of a batch do not depend on the
// number of threads.
//
// An epoch begins with start_epoch(), even if the previous one was not read to its end. It has
// steps() x parts() batches. If a thread throws, next() throws the same exception at that step.
// Only one thread may call set_batch(), set_shares(), set_view(), start_epoch() and next().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "io/images/augment.hpp"
#include "io/images/image_source.hpp"
#include "io/images/sampler.hpp"
#include "kernels/base/pixels.hpp"

namespace dp {

struct LoaderOptions {
  std::size_t global_batch = 1;
  std::size_t rank = 0;
  std::size_t ranks = 1;
  std::size_t parts = 1;          // of a rank's batch (sampler.hpp); each part is one Batch
  Shares shares = {};             // of the ranks
  std::size_t largest_batch = 0;  // the most samples that set_batch() will need; 0: as now
  std::uint64_t seed = 0;         // for permutation and augmentation
  SampleOrder order = SampleOrder::shuffled;                     // in_order for evaluation
  std::optional<AugmentationRule> augment = AugmentationRule{};  // nullopt: no random change
  std::size_t threads = 1;                                       // at least 1
  std::size_t buffers = 0;  // 0: two more than the threads can fill at once
  bool is_raw = false;      // batches have bytes and crops instead of images
  // Allocates the buffers, aligned to 64 bytes; null: ordinary memory.
  std::function<std::shared_ptr<std::byte>(std::size_t bytes)> allocate = nullptr;
  std::function<void(std::size_t step)> on_step =
      nullptr;  // tests: a thread calls it before each step
};

struct Batch {
  std::span<const float> images;         // [samples][height][width][3], 64-byte aligned
  std::span<const std::uint8_t> bytes;   // raw: [samples][3][height][width]
  std::span<const ImageCrop> crops;      // raw: [samples]
  std::span<const std::int32_t> labels;  // [samples]
  std::size_t samples = 0;               // of this rank; may be 0 in the last step
  std::size_t global_samples = 0;        // of all ranks, in all parts
  std::size_t step = 0;                  // within the epoch
  std::size_t part = 0;                  // of the step
  // Image k of this batch is image first_image + k * image_stride of the step's images on all
  // ranks.
  std::size_t first_image = 0, image_stride = 1;
};

class Loader {
 public:
  // `source` must outlive the loader. No epoch is started yet.
  Loader(const ImageSource& source, const LoaderOptions& options);
  ~Loader();  // stops and joins the threads, even in the middle of an epoch
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  [[nodiscard]] std::size_t steps() const noexcept;
  [[nodiscard]] std::size_t parts() const noexcept;
  // The most samples that a batch of this rank has; set_batch() changes it.
  [[nodiscard]] std::size_t largest_batch() const;

  // Sets the batch size of the next epochs; call it between epochs. A part must not be larger than
  // LoaderOptions::largest_batch.
  void set_batch(std::size_t global_batch, std::size_t parts);

  // Changes the ranks' shares for all batches that next() has not returned yet. Threads fill such
  // batches again if they had already filled them. The batch that next() returned last becomes
  // invalid. Allocates memory if a batch is larger than any before.
  void set_shares(const Shares& shares);

  // Sets one augmentation for every image of the next epochs. It is used only if options.augment is
  // nullopt. Call it between epochs.
  void set_view(const Augmentation& view);

  // Starts an epoch: threads begin with its first batches. The batch that next() returned last
  // becomes invalid. In a resumed epoch, next() first returns the batch of step `first_step`.
  void start_epoch(std::uint64_t epoch, std::size_t first_step = 0);

  // Returns the next batch, valid until the following next() or start_epoch(). An epoch has
  // (steps() - first_step) x parts() batches. Waits if the threads are not ready.
  const Batch& next();
  // Whether next() would return at once.
  [[nodiscard]] bool is_ready() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dp
