// Brings batches of images to a GPU beside its other work: while one batch is computed on, the next
// one is on its way, on a queue of its own, from pinned memory; crop, flip and normalisation happen
// there (augment.hpp).
//
//     send(batch)      starts the copies; at most two batches are on their way or in use
//     await_sent()     the host may write into the memory that the last send() named
//     receive(y)       an operation: the earliest batch that was sent and not received, in y
//
// Only GPUs need one: on a CPU the loader's own memory is the network's input.
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

  // images: planar bytes, crops, labels: one a sample; memory of Device::allocate_host.
  virtual void send(std::span<const std::uint8_t> images, std::span<const ImageCrop> crops,
                    std::span<const std::int32_t> labels) = 0;
  virtual void await_sent() = 0;

  // y: N x H x W x 3 NHWC fp32 for the batch's N and the images' size. labels(): memory of the
  // device, filled with y.
  virtual void receive(const TensorView& y) = 0;
  [[nodiscard]] virtual const std::int32_t* labels() const = 0;
};

// `image`: the size of every image. Error(internal) on a CPU.
[[nodiscard]] std::unique_ptr<InputLink> make_input_link(Device& device, std::size_t largest_batch,
                                                         const ImageShape& image,
                                                         const PixelTable& table);

}  // namespace dp
