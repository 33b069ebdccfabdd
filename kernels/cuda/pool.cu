// Average pooling as a walk over the rows (pixels) of the output. A thread handles a few
// neighbouring channels (rows.cuh) and sums them over its window. Backward, too, walks over its
// output, dx. For each pixel it adds the contributions of all windows that contain the pixel, so no
// two threads write to the same address.
#include "kernels/pool.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/pooling.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

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

// 1 / count. One iteration of Newton's method makes the fast approximation exact (Markstein 1990).
// A division would be a function call, which saves registers on a stack.
__device__ inline float reciprocal(unsigned count) {
  const float value = static_cast<float>(count);
#ifdef __CUDA_ARCH__
  float near;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(value));
  return fmaf(fmaf(-value, near, 1.0f), near, near);
#else
  return 1.0f / value;
#endif
}

// Each row of threads in a block computes one pixel of y (all its channels) at a time. It sums in
// the CPU twin's order, so the bits are equal.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    pool_forward_kernel(RowGrid grid, PoolingPlane s, const T* x, T* y) {
  const RowThread thread = row_thread(grid);
  for_each_row(thread, [&](std::size_t row) {
    const Pixel y_pixel = pixel_of(row, s.rows.windows, s.columns.windows);
    const std::size_t n = y_pixel.n;
    const unsigned p = y_pixel.row, q = y_pixel.column;
    Floats<N> sum{};
    const unsigned bottom = s.rows.end(p), left = s.columns.begin(q), right = s.columns.end(q);
    DP_UNROLL_1
    for (unsigned h = s.rows.begin(p); h < bottom; ++h) {
      DP_UNROLL_1
      for (unsigned w = left; w < right; ++w) {
        const std::size_t from = (n * s.rows.pixels + h) * s.columns.pixels + w;
        add_to(sum, load_floats<N>(x + (from * grid.packs + thread.pack) * N));
      }
    }
    const float inverse = reciprocal(s.divisor(p, q));
    store_floats(y + (row * grid.packs + thread.pack) * N, scaled(sum, inverse));
  });
}

// Each row of threads in a block computes one pixel of dx (all its channels) at a time: the sum
// over the windows that contain the pixel.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    pool_backward_kernel(RowGrid grid, PoolingPlane s, const T* dy, T* dx) {
  const RowThread thread = row_thread(grid);
  for_each_row(thread, [&](std::size_t row) {
    const Pixel x_pixel = pixel_of(row, s.rows.pixels, s.columns.pixels);
    const std::size_t n = x_pixel.n;
    const unsigned h = x_pixel.row, w = x_pixel.column;
    Floats<N> sum{};
    const unsigned p_end = s.rows.last(h), q_first = s.columns.first(w), q_end = s.columns.last(w);
    DP_UNROLL_1
    for (unsigned p = s.rows.first(h); p < p_end; ++p) {
      DP_UNROLL_1
      for (unsigned q = q_first; q < q_end; ++q) {
        const std::size_t from = (n * s.rows.windows + p) * s.columns.windows + q;
        const float inverse = reciprocal(s.divisor(p, q));
        add_to(sum, scaled(load_floats<N>(dy + (from * grid.packs + thread.pack) * N), inverse));
      }
    }
    store_floats(dx + (row * grid.packs + thread.pack) * N, sum);
  });
}

// Each row of a block's threads sums the pixels of one image, in order and with eight loads in
// flight.
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

// Each row of threads in a block writes one pixel of dx (all its channels) at a time.
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

void check(const TensorDesc& x, const TensorDesc& y) {
  require(x.is_nhwc() && y.is_nhwc() && x.shape.n == y.shape.n && x.shape.c == y.shape.c,
          "pooling on a GPU needs the NHWC layout and an output with the batch and channels of its "
          "input");
}

}  // namespace

void average_pool_forward(CudaDevice& device, const TensorView& x, const Pooling& pooling,
                          const TensorView& y) {
  check(x.desc, y.desc);
  const PoolingPlane plane(x.desc.shape, pooling, y.desc.shape);
  if (y.desc.shape.elements() == 0) return;
  with_type_and_pack(x.desc.type, x.desc.shape.c, are_aligned(x.data, y.data),
                     [&](auto* tag, auto n) {
                       using T = std::remove_pointer_t<decltype(tag)>;
                       constexpr int kN = decltype(n)::value;
                       const RowGrid grid = pool_grid(device, y.desc.shape, kN);
                       launch(pool_forward_kernel<T, kN>, Launch{.blocks = grid.blocks()},
                              device.stream(), grid, plane, x.as<const T>(), y.as<T>());
                     });
}

void average_pool_backward(CudaDevice& device, const TensorView& dy, const Pooling& pooling,
                           const TensorView& dx) {
  check(dx.desc, dy.desc);
  const PoolingPlane plane(dx.desc.shape, pooling, dy.desc.shape);
  if (dx.desc.shape.elements() == 0) return;
  with_type_and_pack(dx.desc.type, dx.desc.shape.c, are_aligned(dy.data, dx.data),
                     [&](auto* tag, auto n) {
                       using T = std::remove_pointer_t<decltype(tag)>;
                       constexpr int kN = decltype(n)::value;
                       const RowGrid grid = pool_grid(device, dx.desc.shape, kN);
                       launch(pool_backward_kernel<T, kN>, Launch{.blocks = grid.blocks()},
                              device.stream(), grid, plane, dy.as<const T>(), dx.as<T>());
                     });
}

void global_average_pool_forward(CudaDevice& device, const TensorView& x, const TensorView& y) {
  check(x.desc, y.desc);
  require(y.desc.type == DataType::f32, "pooled values must be fp32");
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
  require(dy.desc.type == DataType::f32, "pooled values must be fp32");
  const Shape shape = dx.desc.shape;
  if (shape.elements() == 0) return;
  with_type_and_pack(dx.desc.type, shape.c, are_aligned(dx.data), [&](auto* tag, auto n) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kN = decltype(n)::value;
    const RowGrid grid = pool_grid(device, shape, kN);
    launch(global_backward_kernel<T, kN>, Launch{.blocks = grid.blocks()}, device.stream(), grid,
           static_cast<unsigned>(shape.pixels()), 1.0f / static_cast<float>(shape.pixels()),
           dy.as<const float>(), dx.as<T>());
  });
}

}  // namespace dp::cuda
