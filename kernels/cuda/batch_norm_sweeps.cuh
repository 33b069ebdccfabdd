// The four kernels of batch normalisation that read whole tensors. Each pass, forward and backward,
// has two sweeps: one that sums and one that writes. batch_norm.cu has the outline and the kernels
// between the sweeps. The sums are made as in channel_sums.cuh.
#pragma once

#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/rows.cuh"

namespace dp::cuda::batch_norm {

// Each thread has the loads of kUnroll rows in flight. With the registers that this takes, a
// multiprocessor runs kForwardBlocks or kBackwardBlocks blocks at a time.
inline constexpr unsigned kUnroll = 4, kForwardBlocks = 4, kBackwardBlocks = 2;

// The per-channel arrays, C floats each, one after the other in the object's memory. The first four
// keep their values between forward and backward.
struct Channels {
  float* first = nullptr;
  std::size_t count = 0;

  [[nodiscard]] DP_HD float* mean() const { return first; }
  [[nodiscard]] DP_HD float* inverse_deviation() const { return first + count; }
  // y = x * scale + shift
  [[nodiscard]] DP_HD float* scale() const { return first + 2 * count; }
  [[nodiscard]] DP_HD float* shift() const { return first + 3 * count; }
  // dx = scale * g - slope * (x - mean) - offset
  [[nodiscard]] DP_HD float* slope() const { return first + 4 * count; }
  [[nodiscard]] DP_HD float* offset() const { return first + 5 * count; }
  // for inference
  [[nodiscard]] DP_HD float* running_scale() const { return first + 6 * count; }
  [[nodiscard]] DP_HD float* running_shift() const { return first + 7 * count; }
  static constexpr std::size_t kArrays = 8;
};

// Loads a thread's channels of a per-channel array.
template <int N>
__device__ Floats<N> channels_of(const float* array, const RowThread& thread) {
  constexpr int kPart = N % 4 == 0 ? 4 : 1;  // C is a multiple of N, so the arrays are aligned
  Floats<N> result{};
  if (thread.is_idle) return result;
  for (int part = 0; part < N; part += kPart) {
    const float* at = array + static_cast<std::size_t>(thread.pack) * N + part;
    const Floats<kPart> some = load_floats<kPart>(at);
    for (int v = 0; v < kPart; ++v) result[part + v] = some[v];
  }
  return result;
}

// ---- forward ------------------------------------------------------------------------------------

// Sums of x - pivot and of its square. The pivot is the channel's first value, so that a mean far
// from zero causes no cancellation.
template <class T, int N>
__global__ void __launch_bounds__(kThreads, kForwardBlocks)
    statistics_kernel(RowGrid grid, const T* x, float* partials) {
  const RowThread thread = row_thread(grid);
  const std::size_t channels = static_cast<std::size_t>(grid.packs) * N;
  const T* column = x + static_cast<std::size_t>(thread.pack) * N;
  Floats<N> pivot{}, sum{}, squares{};
  if (!thread.is_idle) pivot = load_floats<N>(column);
  for_rows<kUnroll>(thread, [&](auto unroll, std::size_t row) {
    Pack<T, N> packs[unroll];
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = grid.rows - 1 - (row + static_cast<std::size_t>(u) * thread.step);
      packs[u] = load_pack<T, N>(column + at * channels);
    }
    for (int v = 0; v < N; ++v) {
      // The rows in flight are added to each other first, because shorter chains of sums round
      // less.
      float part = 0, part_squares = 0;
      for (int u = 0; u < unroll; ++u) {
        const float d = to_float(packs[u].values[v]) - pivot[v];
        part = u == 0 ? d : part + d;
        part_squares = u == 0 ? d * d : fmaf(d, d, part_squares);
      }
      sum[v] += part;
      squares[v] += part_squares;
    }
  });
  store_block_sums(grid, sum, squares, partials);
}

template <class T, int N, bool has_addend, bool has_relu>
__global__ void __launch_bounds__(kThreads, has_addend ? 3 : kForwardBlocks)
    normalise_kernel(RowGrid grid, const float* scales, const float* shifts, const T* x,
                     const T* addend, T* y) {
  const RowThread thread = row_thread(grid);
  const std::size_t channels = static_cast<std::size_t>(grid.packs) * N;
  const std::size_t column = static_cast<std::size_t>(thread.pack) * N;
  const Floats<N> scale = channels_of<N>(scales, thread), shift = channels_of<N>(shifts, thread);
  for_rows<kUnroll>(thread, [&](auto unroll, std::size_t row) {
    Pack<T, N> packs[unroll];
    [[maybe_unused]] Pack<T, N> added[unroll];
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = (row + static_cast<std::size_t>(u) * thread.step) * channels + column;
      packs[u] = load_pack<T, N>(x + at);
      if constexpr (has_addend) added[u] = load_pack<T, N>(addend + at);
    }
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = (row + static_cast<std::size_t>(u) * thread.step) * channels + column;
      Floats<N> result;
      for (int v = 0; v < N; ++v) {
        float value = fmaf(to_float(packs[u].values[v]), scale[v], shift[v]);
        if constexpr (has_addend) value += to_float(added[u].values[v]);
        if constexpr (has_relu) value = value < 0.0f ? 0.0f : value;
        result[v] = value;
      }
      store_floats(y + at, result);
    }
  });
}

// ---- backward -----------------------------------------------------------------------------------

// The tensor from which the ReLU's mask is computed: y if there is an addend, else x, which is
// normalised again.
enum class Mask { none, from_x, from_y };

// The tensors that backward reads and writes; dy2 may be null.
template <class T>
struct Tensors {
  const T *x, *y, *dy, *dy2;
  T *dx, *d_addend;
};

// The gradient before the ReLU, which is dy + dy2 with the ReLU's mask applied. A mask computed
// from x is the same as in forward, because both passes compute x * scale + shift with the same
// fused multiply-add.
template <class T, int N, Mask mask, bool has_two>
__device__ float gradient_of(const Pack<T, N>& x, const Pack<T, N>& y, const Pack<T, N>& dy,
                             const Pack<T, N>& dy2, const Floats<N>& scale, const Floats<N>& shift,
                             int v) {
  float g = to_float(dy.values[v]);
  if constexpr (has_two) g += to_float(dy2.values[v]);
  if constexpr (mask == Mask::from_x) {
    g = fmaf(to_float(x.values[v]), scale[v], shift[v]) > 0.0f ? g : 0.0f;
  }
  if constexpr (mask == Mask::from_y) g = to_float(y.values[v]) > 0.0f ? g : 0.0f;
  return g;
}

// Sums of g and g * (x - mean), where g is dy + dy2 with the ReLU's mask applied. With an addend, g
// is also the addend's gradient and is written here, so that the second sweep need not read y, dy
// and dy2 again.
template <class T, int N, Mask mask, bool has_two, bool stores_gradient>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks)
    gradient_sums_kernel(RowGrid grid, Channels channels, Tensors<T> t, float* partials) {
  const RowThread thread = row_thread(grid);
  const std::size_t column = static_cast<std::size_t>(thread.pack) * N;
  Floats<N> scale{}, shift{}, sum{}, product{};
  const Floats<N> mean = channels_of<N>(channels.mean(), thread);
  if constexpr (mask == Mask::from_x) {
    scale = channels_of<N>(channels.scale(), thread);
    shift = channels_of<N>(channels.shift(), thread);
  }
  for_rows<kUnroll>(thread, [&](auto unroll, std::size_t row) {
    Pack<T, N> x[unroll], y[unroll]{}, dy[unroll], dy2[unroll]{};
    const auto place = [&](int u) {
      const std::size_t at = grid.rows - 1 - (row + static_cast<std::size_t>(u) * thread.step);
      return at * channels.count + column;
    };
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = place(u);
      x[u] = load_pack<T, N>(t.x + at);
      dy[u] = load_pack<T, N>(t.dy + at);
      if constexpr (mask == Mask::from_y) y[u] = load_pack<T, N>(t.y + at);
      if constexpr (has_two) dy2[u] = load_pack<T, N>(t.dy2 + at);
    }
    Floats<N> part{}, part_product{};
    for (int u = 0; u < unroll; ++u) {
      Floats<N> gradient;
      for (int v = 0; v < N; ++v) {
        const float g =
            gradient_of<T, N, mask, has_two>(x[u], y[u], dy[u], dy2[u], scale, shift, v);
        part[v] += g;
        part_product[v] = fmaf(g, to_float(x[u].values[v]) - mean[v], part_product[v]);
        gradient[v] = g;
      }
      if constexpr (stores_gradient) store_floats(t.d_addend + place(u), gradient);
    }
    for (int v = 0; v < N; ++v) {
      sum[v] += part[v];
      product[v] += part_product[v];
    }
  });
  store_block_sums(grid, sum, product, partials);
}

template <class T, int N, Mask mask, bool has_two>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks)
    input_gradient_kernel(RowGrid grid, Channels channels, Tensors<T> t) {
  const RowThread thread = row_thread(grid);
  const std::size_t column = static_cast<std::size_t>(thread.pack) * N;
  Floats<N> shift{};
  const Floats<N> mean = channels_of<N>(channels.mean(), thread),
                  scale = channels_of<N>(channels.scale(), thread),
                  slope = channels_of<N>(channels.slope(), thread),
                  offset = channels_of<N>(channels.offset(), thread);
  if constexpr (mask == Mask::from_x) shift = channels_of<N>(channels.shift(), thread);
  for_rows<kUnroll>(thread, [&](auto unroll, std::size_t row) {
    Pack<T, N> x[unroll], dy[unroll], dy2[unroll]{};
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at =
          (row + static_cast<std::size_t>(u) * thread.step) * channels.count + column;
      x[u] = load_pack<T, N>(t.x + at);
      dy[u] = load_pack<T, N>(t.dy + at);
      if constexpr (has_two) dy2[u] = load_pack<T, N>(t.dy2 + at);
    }
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at =
          (row + static_cast<std::size_t>(u) * thread.step) * channels.count + column;
      Floats<N> result;
      for (int v = 0; v < N; ++v) {
        const float g =
            gradient_of<T, N, mask, has_two>(x[u], x[u], dy[u], dy2[u], scale, shift, v);
        const float d = to_float(x[u].values[v]) - mean[v];
        result[v] = fmaf(scale[v], g, fmaf(-slope[v], d, -offset[v]));
      }
      store_floats(t.dx + at, result);
    }
  });
}

}  // namespace dp::cuda::batch_norm
