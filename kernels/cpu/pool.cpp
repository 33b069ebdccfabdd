// Average pooling is a loop over slices of channels (channel_slices.hpp). Backward walks over dx.
// For each pixel it adds the contributions of all windows that contain the pixel. Global pooling is
// a loop over planes (one image, one channel block); the channels of a block are the innermost
// loop, which vectorises.
#include "kernels/pool.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/cpu/channel_slices.hpp"
#include "kernels/cpu/twins.hpp"
#include "kernels/cpu/vector.hpp"

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

void average_pool_forward(CpuDevice& device, const TensorView& x, const Pooling& pooling,
                          const TensorView& y) {
  const PoolingPlane plane(x.desc.shape, pooling, y.desc.shape);
  with_type_and_width(x.desc, [&](auto* tag, auto width) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const std::size_t block = x.desc.channel_block;
    for_each_slice(device, x.desc, [&](std::size_t image, const Slice& s) {
      const T* from = x.as<const T>() + channel_start(x.desc, image, s.channel);
      T* to = y.as<T>() + channel_start(y.desc, image, s.channel);
      for (unsigned p = 0; p < plane.rows.windows; ++p) {
        for (unsigned q = 0; q < plane.columns.windows; ++q, to += block) {
          Vector<width> sum{};
          for (unsigned h = plane.rows.begin(p); h < plane.rows.end(p); ++h) {
            for (unsigned w = plane.columns.begin(q); w < plane.columns.end(q); ++w) {
              sum += load_vector<width>(from + (std::size_t{h} * plane.columns.pixels + w) * block);
            }
          }
          store_vector<width>(to, sum * (1.0f / static_cast<float>(plane.divisor(p, q))));
        }
      }
    });
  });
}

void average_pool_backward(CpuDevice& device, const TensorView& dy, const Pooling& pooling,
                           const TensorView& dx) {
  const PoolingPlane plane(dx.desc.shape, pooling, dy.desc.shape);
  with_type_and_width(dx.desc, [&](auto* tag, auto width) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const std::size_t block = dx.desc.channel_block;
    for_each_slice(device, dx.desc, [&](std::size_t image, const Slice& s) {
      const T* from = dy.as<const T>() + channel_start(dy.desc, image, s.channel);
      T* to = dx.as<T>() + channel_start(dx.desc, image, s.channel);
      for (unsigned h = 0; h < plane.rows.pixels; ++h) {
        for (unsigned w = 0; w < plane.columns.pixels; ++w, to += block) {
          Vector<width> sum{};
          for (unsigned p = plane.rows.first(h); p < plane.rows.last(h); ++p) {
            for (unsigned q = plane.columns.first(w); q < plane.columns.last(w); ++q) {
              const std::size_t at = (std::size_t{p} * plane.columns.windows + q) * block;
              sum +=
                  load_vector<width>(from + at) * (1.0f / static_cast<float>(plane.divisor(p, q)));
            }
          }
          store_vector<width>(to, sum);
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
