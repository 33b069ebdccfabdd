// "The whole" is the tensor with the channels of all parts. If it has the same channel block as a
// part, an image of the part is one contiguous piece of an image of the whole, and is copied at
// once. If not, channels are copied one by one.
#include "kernels/concatenate.hpp"

#include <cstring>

#include "kernels/base/error.hpp"
#include "kernels/cpu/channel_slices.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

enum class Way { into_whole, into_part };

// Copies one image of a part. The part's channels begin at channel `first` of `whole`.
template <Way way, class T>
void copy_image(const TensorView& part, const TensorView& whole, std::size_t first,
                std::size_t image) {
  const TensorDesc &a = part.desc, &b = whole.desc;
  const auto move = [](T* at_part, T* at_whole, std::size_t count) {
    if constexpr (way == Way::into_whole) {
      std::memcpy(at_whole, at_part, count * sizeof(T));
    } else {
      std::memcpy(at_part, at_whole, count * sizeof(T));
    }
  };
  const std::size_t pixels = a.shape.pixels();
  T *from_part = part.as<T>(), *from_whole = whole.as<T>();
  if (a.channel_block == b.channel_block && first % b.channel_block == 0) {
    move(from_part + channel_start(a, image, 0), from_whole + channel_start(b, image, first),
         pixels * a.shape.c);
    return;
  }
  for (std::size_t c = 0; c < a.shape.c; ++c) {
    T* at_part = from_part + channel_start(a, image, c);
    T* at_whole = from_whole + channel_start(b, image, first + c);
    for (std::size_t p = 0; p < pixels; ++p) {
      move(at_part + p * a.channel_block, at_whole + p * b.channel_block, 1);
    }
  }
}

template <Way way>
void copy_parts(const CpuDevice& device, std::span<const TensorView> parts,
                const TensorView& whole) {
  std::size_t channels = 0;
  for (const TensorView& part : parts) {
    const Shape &a = part.desc.shape, &b = whole.desc.shape;
    DP_ASSERT(part.desc.type == whole.desc.type && a.n == b.n && a.h == b.h && a.w == b.w,
              "the part {} differs from the whole, {}, in type, batch, height or width",
              to_string(part.desc), to_string(whole.desc));
    channels += a.c;
  }
  DP_ASSERT(channels == whole.desc.shape.c,
            "the parts have {} channels in total, but the whole has {}", channels,
            whole.desc.shape.c);
  with_type(whole.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    parallel_for(device, whole.desc.shape.n, [&](std::size_t image) {
      std::size_t first = 0;
      for (const TensorView& part : parts) {
        if (part) copy_image<way, T>(part, whole, first, image);
        first += part.desc.shape.c;
      }
    });
  });
}

}  // namespace

void concatenate(CpuDevice& device, std::span<const TensorView> parts, const TensorView& y) {
  copy_parts<Way::into_whole>(device, parts, y);
}

void split(CpuDevice& device, const TensorView& y, std::span<const TensorView> parts) {
  copy_parts<Way::into_part>(device, parts, y);
}

}  // namespace dp::cpu
