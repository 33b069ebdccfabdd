// Loops over planes (one image, one channel block), which threads share; the channels of a block
// are the innermost loop and vectorise.
#include "kernels/pool.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

namespace {

// Calls body(n, block) for every image and channel block.
template <class Body>
void for_each_plane(const CpuDevice& device, const TensorDesc& desc, const Body& body) {
  const std::size_t blocks = desc.shape.c / desc.channel_block;
  parallel_for(device, desc.shape.n * blocks, [&](std::size_t i) { body(i / blocks, i % blocks); });
}

std::size_t plane_offset(const TensorDesc& desc, std::size_t n, std::size_t block) {
  return (n * desc.shape.c + block * desc.channel_block) * desc.shape.pixels();
}

}  // namespace

void average_pool_forward(CpuDevice& device, const TensorView& x, std::size_t window,
                          std::size_t stride, const TensorView& y) {
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const float inverse = 1.0f / static_cast<float>(window * window);
    const Shape in = x.desc.shape, out = y.desc.shape;
    const std::size_t width = x.desc.channel_block;
    for_each_plane(device, x.desc, [&](std::size_t n, std::size_t block) {
      const T* from = x.as<const T>() + plane_offset(x.desc, n, block);
      T* to = y.as<T>() + plane_offset(y.desc, n, block);
      for (std::size_t p = 0; p < out.h; ++p) {
        for (std::size_t q = 0; q < out.w; ++q) {
          for (std::size_t c = 0; c < width; ++c) {
            float sum = 0;
            for (std::size_t r = 0; r < window; ++r) {
              for (std::size_t s = 0; s < window; ++s) {
                sum += load(from[((p * stride + r) * in.w + q * stride + s) * width + c]);
              }
            }
            to[(p * out.w + q) * width + c] = store<T>(sum * inverse);
          }
        }
      }
    });
  });
}

void average_pool_backward(CpuDevice& device, const TensorView& dy, std::size_t window,
                           std::size_t stride, const TensorView& dx) {
  with_type(dx.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const float inverse = 1.0f / static_cast<float>(window * window);
    const Shape in = dx.desc.shape, out = dy.desc.shape;
    const std::size_t width = dx.desc.channel_block;
    for_each_plane(device, dx.desc, [&](std::size_t n, std::size_t block) {
      const T* from = dy.as<const T>() + plane_offset(dy.desc, n, block);
      T* to = dx.as<T>() + plane_offset(dx.desc, n, block);
      // The windows p that hold row h: p * stride <= h < p * stride + window.
      const auto first = [&](std::size_t h) { return h < window ? 0 : (h - window) / stride + 1; };
      for (std::size_t h = 0; h < in.h; ++h) {
        for (std::size_t w = 0; w < in.w; ++w) {
          for (std::size_t c = 0; c < width; ++c) {
            float sum = 0;
            for (std::size_t p = first(h); p < out.h && p * stride <= h; ++p) {
              for (std::size_t q = first(w); q < out.w && q * stride <= w; ++q) {
                sum += load(from[(p * out.w + q) * width + c]);
              }
            }
            to[(h * in.w + w) * width + c] = store<T>(sum * inverse);
          }
        }
      }
    });
  });
}

void global_average_pool_forward(CpuDevice& device, const TensorView& x, const TensorView& y) {
  DP_ASSERT(y.desc.type == DataType::f32 && y.desc.is_nhwc(), "{}", to_string(y.desc));
  with_type(x.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const std::size_t pixels = x.desc.shape.pixels(), width = x.desc.channel_block;
    const float inverse = 1.0f / static_cast<float>(pixels);
    for_each_plane(device, x.desc, [&](std::size_t n, std::size_t block) {
      const T* from = x.as<const T>() + plane_offset(x.desc, n, block);
      float* to = y.as<float>() + n * x.desc.shape.c + block * width;
      std::fill(to, to + width, 0.0f);
      for (std::size_t p = 0; p < pixels; ++p) {
#pragma omp simd
        for (std::size_t c = 0; c < width; ++c) to[c] += load(from[p * width + c]);
      }
#pragma omp simd
      for (std::size_t c = 0; c < width; ++c) to[c] *= inverse;
    });
  });
}

void global_average_pool_backward(CpuDevice& device, const TensorView& dy, const TensorView& dx) {
  DP_ASSERT(dy.desc.type == DataType::f32 && dy.desc.is_nhwc(), "{}", to_string(dy.desc));
  with_type(dx.desc.type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const std::size_t pixels = dx.desc.shape.pixels(), width = dx.desc.channel_block;
    const float inverse = 1.0f / static_cast<float>(pixels);
    for_each_plane(device, dx.desc, [&](std::size_t n, std::size_t block) {
      const float* from = dy.as<const float>() + n * dx.desc.shape.c + block * width;
      T* to = dx.as<T>() + plane_offset(dx.desc, n, block);
      for (std::size_t p = 0; p < pixels; ++p) {
#pragma omp simd
        for (std::size_t c = 0; c < width; ++c) to[p * width + c] = store<T>(from[c] * inverse);
      }
    });
  });
}

}  // namespace dp::cpu
