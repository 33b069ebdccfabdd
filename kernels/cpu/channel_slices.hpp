// Cuts a tensor into units of work, for loops that keep a value per channel.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector.hpp"

namespace dp::cpu {

// The unit of work of a thread: W neighbouring channels of one image. Each of the `pixels` pixels
// has its W values side by side, `stride` elements after those of the pixel before. W is 16, 8 or
// 1, depending on the channel block.
struct Slice {
  std::size_t offset;   // index of the first element in the tensor
  std::size_t channel;  // first channel
  std::size_t stride, pixels;
};

constexpr std::size_t slice_width(std::size_t channel_block) {
  return channel_block % 16 == 0 ? 16 : channel_block % 8 == 0 ? 8 : 1;
}

// Calls body with a null pointer of the element type and the slice width W as a compile-time
// constant.
template <class Body>
void with_type_and_width(const TensorDesc& desc, const Body& body) {
  with_type(desc.type, [&](auto* tag) {
    switch (slice_width(desc.channel_block)) {
      case 16:
        return body(tag, std::integral_constant<std::size_t, 16>{});
      case 8:
        return body(tag, std::integral_constant<std::size_t, 8>{});
      default:
        return body(tag, std::integral_constant<std::size_t, 1>{});
    }
  });
}

// Index of the first pixel of a channel of an image; the channel's pixels are channel_block apart.
[[nodiscard]] inline std::size_t channel_start(const TensorDesc& desc, std::size_t image,
                                               std::size_t channel) {
  const std::size_t first = channel % desc.channel_block;
  return (image * desc.shape.c + channel - first) * desc.shape.pixels() + first;
}

// Calls body(image, slice) for all slices of a tensor in parallel.
template <class Body>
void for_each_slice(const CpuDevice& device, const TensorDesc& desc, const Body& body) {
  const std::size_t block = desc.channel_block, pixels = desc.shape.pixels();
  const std::size_t width = slice_width(block), slices = desc.shape.c / width;
  parallel_for(device, desc.shape.n * slices, [&](std::size_t i) {
    const std::size_t image = i / slices, channel = i % slices * width;
    body(image, Slice{.offset = channel_start(desc, image, channel),
                      .channel = channel,
                      .stride = block,
                      .pixels = pixels});
  });
}

}  // namespace dp::cpu
