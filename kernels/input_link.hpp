// Copies batches of images to a GPU while it does other work. While the GPU computes on one batch,
// the next one is copied from pinned memory on a queue of its own. Crop, flip and normalisation run
// on the GPU (augment.hpp).
//
//     send(batch)      starts the copies; at most two batches may be in transit or in use
//     await_sent()     waits until the host may overwrite the memory passed to the last send()
//     receive(y)       operation: fills y with the earliest batch that has not been received yet
//
// Only GPUs need a link: on a CPU the network reads the loader's own memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/base/pixels.hpp"
#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

class InputLink {
 public:
  virtual ~InputLink() = default;

  // images: planar bytes; crops, labels: one per sample. All in memory from Device::allocate_host.
  virtual void send(std::span<const std::uint8_t> images, std::span<const ImageCrop> crops,
                    std::span<const std::int32_t> labels) = 0;
  virtual void await_sent() = 0;

  // y: N x H x W x 3 NHWC fp32 for the batch's N and the images' size. labels(): device memory,
  // filled together with y.
  virtual void receive(const TensorView& y) = 0;
  [[nodiscard]] virtual const std::int32_t* labels() const = 0;
};

// `image`: the size of every image. Throws Error(internal) on a CPU.
[[nodiscard]] std::unique_ptr<InputLink> make_input_link(Device& device, std::size_t largest_batch,
                                                         const ImageShape& image,
                                                         const PixelTable& table);

}  // namespace dp
