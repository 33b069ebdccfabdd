// Brings the loader's batches to the device. On a CPU the network reads the loader's own memory; on
// a GPU the next batch is copied while the device computes on the current one
// (kernels/input_link.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "io/images/augment.hpp"
#include "io/images/loader.hpp"
#include "kernels/device.hpp"
#include "kernels/input_link.hpp"
#include "net/network.hpp"

namespace dp {

struct LoadedBatch {
  const float* images = nullptr;         // on a CPU, the loader's memory
  const std::int32_t* labels = nullptr;  // on a CPU, the loader's memory
  std::size_t samples = 0, global_samples = 0;
  std::size_t part = 0, first_image = 0, image_stride = 1;
};

class BatchFeed {
 public:
  // normalization: applied here on a GPU; on a CPU the loader applies it.
  BatchFeed(Device& device, net::Network& network, const Normalization& normalization);

  // On a GPU, allocates memory for batches of this size.
  void prepare(std::size_t samples);
  // At most two batches may be loaded and not yet taken.
  void load(const Batch& batch);
  // Waits until the loader may reuse the memory of the last batch.
  void await_sent();
  // Removes and returns the batch that was loaded first.
  [[nodiscard]] LoadedBatch take();
  // A device operation after which images_of() and labels_of() have the batch's values. Call it
  // once for each batch that was taken and has images.
  void bring_in(const LoadedBatch& batch);

  [[nodiscard]] TensorView images_of(const LoadedBatch& batch);
  [[nodiscard]] const std::int32_t* labels_of(const LoadedBatch& batch) const {
    return input_ ? input_->labels() : batch.labels;
  }

 private:
  Device& device_;
  net::Network& network_;
  Normalization normalization_;
  std::size_t largest_batch_ = 0;
  std::unique_ptr<InputLink> input_;
  Device::Memory image_memory_;
  std::vector<LoadedBatch> loaded_;  // in order
};

}  // namespace dp
