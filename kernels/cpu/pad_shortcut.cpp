#include "kernels/pad_shortcut.hpp"

#include "kernels/base/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

// Index of a channel's first pixel within one image; its pixels are channel_block apart.
std::size_t channel_start(const TensorDesc& desc, std::size_t channel) {
  const std::size_t block = desc.channel_block;
  return channel / block * desc.shape.pixels() * block + channel % block;
}

void check(const TensorDesc& x, std::size_t stride, const TensorDesc& y) {
  DP_ASSERT(y.shape.c >= x.shape.c && y.shape.h == (x.shape.h - 1) / stride + 1 &&
                y.shape.w == (x.shape.w - 1) / stride + 1,
            "{} -> {} with stride {}", to_string(x), to_string(y), stride);
}

}  // namespace

void pad_shortcut_forward(CpuDevice& device, const TensorView& x, std::size_t stride,
                          const TensorView& y) {
  check(x.desc, stride, y.desc);
  const Shape in = x.desc.shape, out = y.desc.shape;
  const std::size_t first = (out.c - in.c) / 2;
  const std::size_t x_block = x.desc.channel_block, y_block = y.desc.channel_block;
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    parallel_for(device, in.n, [&](std::size_t n) {
      const T* from = x.as<const T>() + n * in.pixels() * in.c;
      T* to = y.as<T>() + n * out.pixels() * out.c;
      for (std::size_t k = 0; k < out.c; ++k) {
        const bool is_new = k < first || k >= first + in.c;
        T* y_channel = to + channel_start(y.desc, k);
        const T* x_channel = is_new ? nullptr : from + channel_start(x.desc, k - first);
        for (std::size_t p = 0; p < out.h; ++p) {
          for (std::size_t q = 0; q < out.w; ++q) {
            y_channel[(p * out.w + q) * y_block] =
                is_new ? T{} : x_channel[(p * in.w + q) * stride * x_block];
          }
        }
      }
    });
  });
}

void pad_shortcut_backward(CpuDevice& device, const TensorView& dy, std::size_t stride,
                           const TensorView& dx) {
  check(dx.desc, stride, dy.desc);
  const Shape in = dx.desc.shape, out = dy.desc.shape;
  const std::size_t first = (out.c - in.c) / 2;
  const std::size_t x_block = dx.desc.channel_block, y_block = dy.desc.channel_block;
  with_type(dx.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    parallel_for(device, in.n, [&](std::size_t n) {
      const T* from = dy.as<const T>() + n * out.pixels() * out.c;
      T* to = dx.as<T>() + n * in.pixels() * in.c;
      for (std::size_t c = 0; c < in.c; ++c) {
        T* x_channel = to + channel_start(dx.desc, c);
        const T* y_channel = from + channel_start(dy.desc, c + first);
        for (std::size_t i = 0; i < in.pixels(); ++i) x_channel[i * x_block] = T{};
        for (std::size_t p = 0; p < out.h; ++p) {
          for (std::size_t q = 0; q < out.w; ++q) {
            x_channel[(p * in.w + q) * stride * x_block] = y_channel[(p * out.w + q) * y_block];
          }
        }
      }
    });
  });
}

}  // namespace dp::cpu
