// Pooling as a walk over the rows (pixels) of the output; a thread has a few neighbouring channels
// (rows.cuh) and sums them over its window. Backward, too, walks over its output, dx, and collects
// from the windows that hold a pixel, so that no two threads write to one place.
#include "kernels/pool.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

struct Pool {
  unsigned x_height, x_width, y_height, y_width, packs, window, stride;
  float inverse;  // 1 / (window * window)
};

template <int N>
__device__ void add_to(Floats<N>& sum, const Floats<N>& more) {
  for (int v = 0; v < N; ++v) sum[v] += more[v];
}
template <int N>
__device__ Floats<N> scaled(const Floats<N>& floats, float factor) {
  Floats<N> result;
  for (int v = 0; v < N; ++v) result[v] = floats[v] * factor;
  return result;
}

// One row of y to a block row. Sums in the order of the CPU's twin, so the bits are equal.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    pool_forward_kernel(RowGrid grid, Pool s, const T* x, T* y) {
  const RowThread thread = row_thread(grid);
  for_rows<1>(thread, [&](auto, std::size_t row) {
    const std::size_t line = quotient(row, s.y_width), n = quotient(line, s.y_height);
    const std::size_t h = (line - n * s.y_height) * s.stride;
    const std::size_t w = (row - line * s.y_width) * s.stride;
    const T* corner = x + (((n * s.x_height + h) * s.x_width + w) * s.packs + thread.pack) * N;
    Floats<N> sum{};
    for (unsigned r = 0; r < s.window; ++r) {
      for (unsigned c = 0; c < s.window; ++c) {
        const std::size_t offset = static_cast<std::size_t>(r) * s.x_width + c;
        add_to(sum, load_floats<N>(corner + offset * s.packs * N));
      }
    }
    store_floats(y + (row * s.packs + thread.pack) * N, scaled(sum, s.inverse));
  });
}

// One row of dx to a block row: the sum over the windows that hold the pixel.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    pool_backward_kernel(RowGrid grid, Pool s, const T* dy, T* dx) {
  const RowThread thread = row_thread(grid);
  // The windows p that hold row h: p * stride <= h < p * stride + window.
  const auto first = [&](unsigned h) { return h < s.window ? 0 : (h - s.window) / s.stride + 1; };
  for_rows<1>(thread, [&](auto, std::size_t row) {
    const std::size_t line = quotient(row, s.x_width), n = quotient(line, s.x_height);
    const unsigned h = static_cast<unsigned>(line - n * s.x_height);
    const unsigned w = static_cast<unsigned>(row - line * s.x_width);
    Floats<N> sum{};
    for (unsigned p = first(h); p < s.y_height && p * s.stride <= h; ++p) {
      for (unsigned q = first(w); q < s.y_width && q * s.stride <= w; ++q) {
        const std::size_t from = (n * s.y_height + p) * s.y_width + q;
        add_to(sum, load_floats<N>(dy + (from * s.packs + thread.pack) * N));
      }
    }
    store_floats(dx + (row * s.packs + thread.pack) * N, scaled(sum, s.inverse));
  });
}

// One image to a block row; the sum runs over its pixels in order, eight loads in flight.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    global_forward_kernel(RowGrid grid, std::size_t pixels, float inverse, const T* x, float* y) {
  const RowThread thread = row_thread(grid);
  const std::size_t stride = static_cast<std::size_t>(grid.packs) * N;
  for_rows<1>(thread, [&](auto, std::size_t image) {
    const T* from = x + image * pixels * stride + static_cast<std::size_t>(thread.pack) * N;
    Floats<N> sum{};
    std::size_t p = 0;
    for (; p + 8 <= pixels; p += 8) {
      Pack<T, N> packs[8];
      for (unsigned u = 0; u < 8; ++u) packs[u] = load_pack<T, N>(from + (p + u) * stride);
      for (unsigned u = 0; u < 8; ++u) add_to(sum, to_floats(packs[u]));
    }
    for (; p < pixels; ++p) add_to(sum, load_floats<N>(from + p * stride));
    float* to = y + image * stride + static_cast<std::size_t>(thread.pack) * N;
    for (int v = 0; v < N; ++v) to[v] = sum[v] * inverse;
  });
}

// One row of dx to a block row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    global_backward_kernel(RowGrid grid, unsigned pixels, float inverse, const float* dy, T* dx) {
  const RowThread thread = row_thread(grid);
  const std::size_t stride = static_cast<std::size_t>(grid.packs) * N;
  for_rows<1>(thread, [&](auto, std::size_t row) {
    const float* from =
        dy + quotient(row, pixels) * stride + static_cast<std::size_t>(thread.pack) * N;
    Floats<N> value;
    for (int v = 0; v < N; ++v) value[v] = from[v] * inverse;
    store_floats(dx + row * stride + static_cast<std::size_t>(thread.pack) * N, value);
  });
}

Pool make_pool(const TensorDesc& x, std::size_t window, std::size_t stride, const TensorDesc& y,
               int width) {
  return {static_cast<unsigned>(x.shape.h),
          static_cast<unsigned>(x.shape.w),
          static_cast<unsigned>(y.shape.h),
          static_cast<unsigned>(y.shape.w),
          static_cast<unsigned>(x.shape.c / static_cast<std::size_t>(width)),
          static_cast<unsigned>(window),
          static_cast<unsigned>(stride),
          1.0f / static_cast<float>(window * window)};
}

void check(const TensorDesc& x, const TensorDesc& y) {
  require(x.is_nhwc() && y.is_nhwc() && x.shape.n == y.shape.n && x.shape.c == y.shape.c,
          "pooling between shapes that do not fit, or a channel block on a GPU");
}

RowGrid pool_grid(const CudaDevice& device, const Shape& shape, unsigned packs) {
  return row_grid(shape.n * shape.pixels(), packs, Walk::in_bands, device.multiprocessors() * 8, 1,
                  1);
}

}  // namespace

void average_pool_forward(CudaDevice& device, const TensorView& x, std::size_t window,
                          std::size_t stride, const TensorView& y) {
  check(x.desc, y.desc);
  if (y.desc.shape.elements() == 0) return;
  with_type_and_pack(x.desc.type, x.desc.shape.c, are_aligned(x.data, y.data),
                     [&](auto* tag, auto n) {
                       using T = std::remove_pointer_t<decltype(tag)>;
                       constexpr int kN = decltype(n)::value;
                       const Pool s = make_pool(x.desc, window, stride, y.desc, kN);
                       const RowGrid grid = pool_grid(device, y.desc.shape, s.packs);
                       launch(pool_forward_kernel<T, kN>, Launch{.blocks = grid.blocks()},
                              device.stream(), grid, s, x.as<const T>(), y.as<T>());
                     });
}

void average_pool_backward(CudaDevice& device, const TensorView& dy, std::size_t window,
                           std::size_t stride, const TensorView& dx) {
  check(dx.desc, dy.desc);
  if (dx.desc.shape.elements() == 0) return;
  with_type_and_pack(dx.desc.type, dx.desc.shape.c, are_aligned(dy.data, dx.data),
                     [&](auto* tag, auto n) {
                       using T = std::remove_pointer_t<decltype(tag)>;
                       constexpr int kN = decltype(n)::value;
                       const Pool s = make_pool(dx.desc, window, stride, dy.desc, kN);
                       const RowGrid grid = pool_grid(device, dx.desc.shape, s.packs);
                       launch(pool_backward_kernel<T, kN>, Launch{.blocks = grid.blocks()},
                              device.stream(), grid, s, dy.as<const T>(), dx.as<T>());
                     });
}

void global_average_pool_forward(CudaDevice& device, const TensorView& x, const TensorView& y) {
  check(x.desc, y.desc);
  require(y.desc.type == DataType::f32, "pooled values are fp32");
  const Shape shape = x.desc.shape;
  if (shape.elements() == 0) return;
  with_type_and_pack(x.desc.type, shape.c, are_aligned(x.data), [&](auto* tag, auto n) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kN = decltype(n)::value;
    const RowGrid grid =
        row_grid(shape.n, shape.c / kN, Walk::in_bands, device.multiprocessors() * 8, 1, 1);
    launch(global_forward_kernel<T, kN>, Launch{.blocks = grid.blocks()}, device.stream(), grid,
           shape.pixels(), 1.0f / static_cast<float>(shape.pixels()), x.as<const T>(),
           y.as<float>());
  });
}

void global_average_pool_backward(CudaDevice& device, const TensorView& dy, const TensorView& dx) {
  check(dx.desc, dy.desc);
  require(dy.desc.type == DataType::f32, "pooled values are fp32");
  const Shape shape = dx.desc.shape;
  if (shape.elements() == 0) return;
  with_type_and_pack(dx.desc.type, shape.c, are_aligned(dx.data), [&](auto* tag, auto n) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kN = decltype(n)::value;
    const RowGrid grid = pool_grid(device, shape, static_cast<unsigned>(shape.c / kN));
    launch(global_backward_kernel<T, kN>, Launch{.blocks = grid.blocks()}, device.stream(), grid,
           static_cast<unsigned>(shape.pixels()), 1.0f / static_cast<float>(shape.pixels()),
           dy.as<const float>(), dx.as<T>());
  });
}

}  // namespace dp::cuda
