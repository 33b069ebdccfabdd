// Max pooling as a walk over the rows (pixels) of the output, y in forward and dx in backward. A
// thread handles a few neighbouring channels (rows.cuh). For each pixel, backward adds the
// contributions of all windows that contain the pixel, so no two threads write to the same address.
#include "kernels/max_pool.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/pooling.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// The positions of the maxima of N channels, one byte each. They are read and written in one
// access.
template <int N>
using PlaceWord = std::conditional_t<N == 8, std::uint64_t,
                                     std::conditional_t<N == 4, std::uint32_t, std::uint8_t>>;

template <int N>
__device__ PlaceWord<N>& word_at(std::uint8_t* places, std::size_t at) {
  return *reinterpret_cast<PlaceWord<N>*>(places + at);
}
template <int N>
__device__ PlaceWord<N> word_at(const std::uint8_t* places, std::size_t at) {
  return *reinterpret_cast<const PlaceWord<N>*>(places + at);
}

// Each row of a block's threads computes one row (pixel) of y at a time.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    max_forward_kernel(RowGrid grid, PoolingPlane s, const T* x, T* y, std::uint8_t* places) {
  const RowThread thread = row_thread(grid);
  for_each_row(thread, [&](std::size_t row) {
    const Pixel y_pixel = pixel_of(row, s.rows.windows, s.columns.windows);
    const std::size_t n = y_pixel.n;
    const unsigned p = y_pixel.row, q = y_pixel.column;
    const unsigned top = s.rows.begin(p), bottom = s.rows.end(p);
    const unsigned left = s.columns.begin(q), right = s.columns.end(q);
    // If all values of a window are -infinity, the first pixel counts as the largest.
    const unsigned first = s.rows.place(top, p) * s.columns.length + s.columns.place(left, q);
    Floats<N> largest;
    unsigned found[N];
    for (int v = 0; v < N; ++v) {
      largest[v] = -INFINITY;
      found[v] = first;
    }
    DP_UNROLL_1
    for (unsigned h = top; h < bottom; ++h) {
      DP_UNROLL_1
      for (unsigned w = left; w < right; ++w) {
        const std::size_t from = (n * s.rows.pixels + h) * s.columns.pixels + w;
        const Floats<N> values = load_floats<N>(x + (from * grid.packs + thread.pack) * N);
        const unsigned place = s.rows.place(h, p) * s.columns.length + s.columns.place(w, q);
        for (int v = 0; v < N; ++v) {
          const bool is_larger = values[v] > largest[v] || values[v] != values[v];
          largest[v] = is_larger ? values[v] : largest[v];
          found[v] = is_larger ? place : found[v];
        }
      }
    }
    const std::size_t to = (row * grid.packs + thread.pack) * N;
    store_floats(y + to, largest);
    if (places == nullptr) return;
    PlaceWord<N> word = 0;
    for (int v = 0; v < N; ++v) {
      word = static_cast<PlaceWord<N>>(word | PlaceWord<N>{static_cast<std::uint8_t>(found[v])}
                                                  << 8 * v);
    }
    word_at<N>(places, to) = word;
  });
}

// Each row of a block's threads computes one row (pixel) of dx at a time.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    max_backward_kernel(RowGrid grid, PoolingPlane s, const T* dy, const std::uint8_t* places,
                        T* dx) {
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
        const std::size_t from =
            (((n * s.rows.windows + p) * s.columns.windows + q) * grid.packs + thread.pack) * N;
        const unsigned place = s.rows.place(h, p) * s.columns.length + s.columns.place(w, q);
        const PlaceWord<N> word = word_at<N>(places, from);
        const Floats<N> values = load_floats<N>(dy + from);
        for (int v = 0; v < N; ++v) sum[v] += (word >> 8 * v & 0xFF) == place ? values[v] : 0.0f;
      }
    }
    store_floats(dx + (row * grid.packs + thread.pack) * N, sum);
  });
}

// Calls body(tag, count) with the widest packs that the channels and all addresses allow.
template <class Body>
void with_packs(const TensorView& x, const TensorView& y, const std::uint8_t* places,
                const Body& body) {
  require(x.desc.is_nhwc() && y.desc.is_nhwc(),
          "max pooling on a GPU needs the NHWC layout, not channel blocks");
  const bool is_aligned = are_aligned(x.data, y.data, places);
  with_type_and_pack(x.desc.type, x.desc.shape.c, is_aligned, body);
}

}  // namespace

void max_pool_forward(CudaDevice& device, const TensorView& x, const Pooling& pooling,
                      const TensorView& y, std::uint8_t* places) {
  require(pooling.window.area() <= 256, "a pooling window must have at most 256 pixels");
  const PoolingPlane plane(x.desc.shape, pooling, y.desc.shape);
  if (y.desc.shape.elements() == 0) return;
  with_packs(x, y, places, [&](auto* tag, auto n) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kN = decltype(n)::value;
    const RowGrid grid = pool_grid(device, y.desc.shape, kN);
    launch(max_forward_kernel<T, kN>, Launch{.blocks = grid.blocks()}, device.stream(), grid, plane,
           x.as<const T>(), y.as<T>(), places);
  });
}

void max_pool_backward(CudaDevice& device, const TensorView& dy, const std::uint8_t* places,
                       const Pooling& pooling, const TensorView& dx) {
  const PoolingPlane plane(dx.desc.shape, pooling, dy.desc.shape);
  if (dx.desc.shape.elements() == 0) return;
  with_packs(dx, dy, places, [&](auto* tag, auto n) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kN = decltype(n)::value;
    const RowGrid grid = pool_grid(device, dx.desc.shape, kN);
    launch(max_backward_kernel<T, kN>, Launch{.blocks = grid.blocks()}, device.stream(), grid,
           plane, dy.as<const T>(), places, dx.as<T>());
  });
}

}  // namespace dp::cuda
