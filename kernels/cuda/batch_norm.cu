// Batch normalisation in kernels of ours. They do nothing but move tensors, so what counts is how
// often each one goes through memory; tensor reads and writes per element:
//
//   forward   x for the statistics | x [, addend] -> y                                    3 (4)
//   backward  without an addend: x, dy [, dy2] | x, dy [, dy2] -> dx                       5 (7)
//             with one: x, y, dy [, dy2] -> d_addend | x, d_addend -> dx                   7 (8)
//
// so the time of a pass is that number x elements x bytes of the type / memory bandwidth, less what
// the L2 cache still holds: the first sweep of each pass starts at the end of the tensor, which was
// written last, and the second one at the beginning, which the first has read last.
//
// Sums over the rows: a thread adds a few values in fp32, a block adds its threads' by a tree, and
// a second kernel adds the blocks' in double in a fixed order: the same bits every time.
#include "kernels/batch_norm.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// A thread has the loads of so many rows in flight. With the registers that this takes, so many
// blocks run on a multiprocessor at a time: in forward, and in backward.
constexpr unsigned kUnroll = 4, kForwardBlocks = 4, kBackwardBlocks = 2;
// Sums are taken in one wave of blocks, since each of them leaves partial sums; a block is not
// worth them for fewer rows per thread than this. What only writes takes several waves, which
// balance out.
constexpr unsigned kLeastRows = 8, kWaves = 4;

// What belongs to a channel, C floats each, one after the other in memory of the object. The first
// four stay between forward and backward.
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
  // of inference
  [[nodiscard]] DP_HD float* running_scale() const { return first + 6 * count; }
  [[nodiscard]] DP_HD float* running_shift() const { return first + 7 * count; }
  static constexpr std::size_t kArrays = 8;
};

// A thread's channels of an array over channels.
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

// Sums of x - pivot and its square, where the pivot is the channel's first value, so that a mean
// far from zero does not cancel.
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
      // The rows in flight are added to each other first: shorter chains of roundings.
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

// ---- from sums to what the second sweep needs ---------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kThreads)
    finish_statistics_kernel(const float* partials, unsigned bands, Channels channels, const T* x,
                             std::size_t rows, float epsilon, float momentum,
                             BatchNorm::Parameters parameters) {
  const Sums sums = add_partials(partials, bands, channels.count);
  const std::size_t c = channel_to_finish(channels.count);
  if (c == channels.count) return;
  const double count = static_cast<double>(rows);
  const double distance = sums.a / count;  // of the mean from the pivot
  const double mean = static_cast<double>(to_float(x[c])) + distance;
  const double squares = sums.b - distance * sums.a;
  const double variance = squares < 0 ? 0.0 : squares / count;  // a NaN stays one
  const double unbiased = rows > 1 ? variance * (count / (count - 1)) : variance;
  const double inverse = 1.0 / sqrt(variance + static_cast<double>(epsilon));
  const float scale = parameters.gamma[c] * static_cast<float>(inverse);
  channels.mean()[c] = static_cast<float>(mean);
  channels.inverse_deviation()[c] = static_cast<float>(inverse);
  channels.scale()[c] = scale;
  channels.shift()[c] = parameters.beta[c] - static_cast<float>(mean) * scale;
  // A batch that is not finite will be skipped; the running statistics must outlive it.
  if (!std::isfinite(mean) || !std::isfinite(unbiased)) return;
  const double part = static_cast<double>(momentum);
  float* running_mean = parameters.running_mean + c;
  float* running_var = parameters.running_var + c;
  *running_mean = static_cast<float>((1 - part) * static_cast<double>(*running_mean) + part * mean);
  *running_var =
      static_cast<float>((1 - part) * static_cast<double>(*running_var) + part * unbiased);
}

__global__ void __launch_bounds__(kThreads)
    running_statistics_kernel(Channels channels, float epsilon, BatchNorm::Parameters parameters) {
  for (std::size_t c = first_item(); c < channels.count; c += item_stride()) {
    const double variance = static_cast<double>(parameters.running_var[c]);
    const double inverse = 1.0 / sqrt(variance + static_cast<double>(epsilon));
    const float scale = parameters.gamma[c] * static_cast<float>(inverse);
    channels.running_scale()[c] = scale;
    channels.running_shift()[c] = parameters.beta[c] - parameters.running_mean[c] * scale;
  }
}

// d_beta = sum g, d_gamma = sum g * xhat, and the two coefficients of
// dx = gamma / deviation * (g - mean(g) - xhat * mean(g * xhat)).
__global__ void __launch_bounds__(kThreads)
    finish_gradients_kernel(const float* partials, unsigned bands, Channels channels,
                            std::size_t rows, const float* gamma, float* d_gamma, float* d_beta) {
  const Sums sums = add_partials(partials, bands, channels.count);
  const std::size_t c = channel_to_finish(channels.count);
  if (c == channels.count) return;
  const double count = static_cast<double>(rows);
  const double inverse = static_cast<double>(channels.inverse_deviation()[c]);
  const double factor = static_cast<double>(gamma[c]) * inverse;
  d_beta[c] = static_cast<float>(sums.a);
  d_gamma[c] = static_cast<float>(sums.b * inverse);
  channels.offset()[c] = static_cast<float>(factor * sums.a / count);
  channels.slope()[c] = static_cast<float>(factor * sums.b * inverse * inverse / count);
}

// ---- the sweeps that write
// ------------------------------------------------------------------------

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

// Where the ReLU's mask comes from: y with an addend, x (normalised again) without.
enum class Mask { none, from_x, from_y };

// What backward reads and writes; dy2 may be null.
template <class T>
struct Tensors {
  const T *x, *y, *dy, *dy2;
  T *dx, *d_addend;
};

// The gradient behind the ReLU of packs of x, y, dy and dy2. The sign of x * scale + shift is that
// of forward's own fused multiply-add.
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

// Sums of g and g * (x - mean), where g is dy + dy2 behind the ReLU's mask. With an addend g is
// its gradient, and is written here: then the second sweep need not read y, dy and dy2 again.
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

// ---- the operation
// --------------------------------------------------------------------------------

// Calls body with std::bool_constant of the flag.
template <class Body>
void with_flag(bool flag, const Body& body) {
  if (flag) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

class CudaBatchNorm final : public BatchNorm {
 public:
  CudaBatchNorm(CudaDevice& device, const BatchNormDesc& desc)
      : device_(device),
        desc_(desc),
        rows_(desc.x.shape.n * desc.x.shape.pixels()),
        memory_(device.allocate(Channels::kArrays * desc.x.shape.c * sizeof(float))),
        channels_{reinterpret_cast<float*>(memory_.get()), desc.x.shape.c} {
    require(desc.x.is_nhwc(), "batch normalisation of a channel block on a GPU");
    if (rows_ == 0 || channels_.count == 0) return;
    // Of all forms the one with single elements has the most blocks below one another.
    const std::size_t bands = sum_grid(1, std::max(kForwardBlocks, kBackwardBlocks)).bands;
    device.reserve_scratch(bands * 2 * channels_.count * sizeof(float));
  }

  void forward_training(const TensorView& x, const TensorView& addend, const Parameters& parameters,
                        const TensorView& y) override {
    if (rows_ == 0 || channels_.count == 0) return;
    with_pack({&x}, [&](auto* tag, auto n) {
      using T = std::remove_pointer_t<decltype(tag)>;
      constexpr int kN = decltype(n)::value;
      const RowGrid grid = sum_grid(kN, kForwardBlocks);
      launch(statistics_kernel<T, kN>, Launch{.blocks = grid.blocks()}, device_.stream(), grid,
             x.as<const T>(), partials());
      launch(finish_statistics_kernel<T>, Launch{.blocks = finish_blocks()}, device_.stream(),
             partials(), grid.bands, channels_, x.as<const T>(), rows_, desc_.epsilon,
             desc_.momentum, parameters);
    });
    normalise(x, addend, channels_.scale(), channels_.shift(), y);
  }

  void forward_inference(const TensorView& x, const TensorView& addend,
                         const Parameters& parameters, const TensorView& y) override {
    if (rows_ == 0 || channels_.count == 0) return;
    launch(running_statistics_kernel, Launch{.blocks = blocks_for(channels_.count)},
           device_.stream(), channels_, desc_.epsilon, parameters);
    normalise(x, addend, channels_.running_scale(), channels_.running_shift(), y);
  }

  void backward(const TensorView& x, const TensorView& y, const Parameters& parameters,
                const Gradients& gradients) override {
    require(static_cast<bool>(gradients.d_addend) == desc_.has_addend,
            "the addend's gradient is given exactly if there is an addend");
    if (rows_ == 0 || channels_.count == 0) return;
    const auto& g = gradients;
    with_pack({&x, &y, &g.dy, &g.dy2, &g.dx, &g.d_addend}, [&](auto* tag, auto n) {
      using T = std::remove_pointer_t<decltype(tag)>;
      constexpr int kN = decltype(n)::value;
      const Tensors<T> t{x.as<const T>(),     y.as<const T>(), g.dy.as<const T>(),
                         g.dy2.as<const T>(), g.dx.as<T>(),    g.d_addend.as<T>()};
      with_flag(t.dy2 != nullptr, [&](auto has_two) {
        constexpr bool kTwo = decltype(has_two)::value;
        if (desc_.has_addend && desc_.has_relu) {
          backward_as<T, kN, Mask::from_y, kTwo, true>(t, parameters, g);
        } else if (desc_.has_addend) {
          backward_as<T, kN, Mask::none, kTwo, true>(t, parameters, g);
        } else if (desc_.has_relu) {
          backward_as<T, kN, Mask::from_x, kTwo, false>(t, parameters, g);
        } else {
          backward_as<T, kN, Mask::none, kTwo, false>(t, parameters, g);
        }
      });
    });
  }

 private:
  [[nodiscard]] RowGrid sum_grid(int width, unsigned blocks) const {
    const std::size_t packs = channels_.count / static_cast<std::size_t>(width);
    return row_grid(rows_, packs, Walk::side_by_side, device_.multiprocessors() * blocks,
                    kLeastRows, kUnroll);
  }
  [[nodiscard]] RowGrid map_grid(int width, unsigned blocks) const {
    const std::size_t packs = channels_.count / static_cast<std::size_t>(width);
    return row_grid(rows_, packs, Walk::in_bands, device_.multiprocessors() * blocks * kWaves,
                    kUnroll, kUnroll);
  }
  [[nodiscard]] dim3 finish_blocks() const { return blocks_for(channels_.count, kBlockChannels); }
  [[nodiscard]] float* partials() const { return reinterpret_cast<float*>(device_.scratch()); }

  template <class Body>
  void with_pack(std::initializer_list<const TensorView*> tensors, const Body& body) const {
    bool aligned = true;
    for (const TensorView* tensor : tensors) aligned = aligned && are_aligned(tensor->data);
    with_type_and_pack(desc_.x.type, channels_.count, aligned, body);
  }

  void normalise(const TensorView& x, const TensorView& addend, const float* scale,
                 const float* shift, const TensorView& y) {
    require(static_cast<bool>(addend) == desc_.has_addend,
            "an addend is given exactly if the description has one");
    with_pack({&x, &addend, &y}, [&](auto* tag, auto n) {
      using T = std::remove_pointer_t<decltype(tag)>;
      constexpr int kN = decltype(n)::value;
      const RowGrid grid = map_grid(kN, kForwardBlocks);
      with_flag(desc_.has_addend, [&](auto has_addend) {
        with_flag(desc_.has_relu, [&](auto has_relu) {
          launch(normalise_kernel<T, kN, decltype(has_addend)::value, decltype(has_relu)::value>,
                 Launch{.blocks = grid.blocks()}, device_.stream(), grid, scale, shift,
                 x.as<const T>(), addend.as<const T>(), y.as<T>());
        });
      });
    });
  }

  template <class T, int N, Mask mask, bool has_two, bool has_addend>
  void backward_as(const Tensors<T>& t, const Parameters& parameters, const Gradients& gradients) {
    const RowGrid sums = sum_grid(N, kBackwardBlocks), map = map_grid(N, kBackwardBlocks);
    launch(gradient_sums_kernel<T, N, mask, has_two, has_addend>, Launch{.blocks = sums.blocks()},
           device_.stream(), sums, channels_, t, partials());
    launch(finish_gradients_kernel, Launch{.blocks = finish_blocks()}, device_.stream(), partials(),
           sums.bands, channels_, rows_, parameters.gamma, gradients.d_gamma, gradients.d_beta);
    if constexpr (has_addend) {
      const Tensors<T> masked{t.x, nullptr, t.d_addend, nullptr, t.dx, nullptr};
      launch(input_gradient_kernel<T, N, Mask::none, false>, Launch{.blocks = map.blocks()},
             device_.stream(), map, channels_, masked);
    } else {
      launch(input_gradient_kernel<T, N, mask, has_two>, Launch{.blocks = map.blocks()},
             device_.stream(), map, channels_, t);
    }
  }

  CudaDevice& device_;
  BatchNormDesc desc_;
  std::size_t rows_;
  Device::Memory memory_;
  Channels channels_;
};

}  // namespace

std::unique_ptr<BatchNorm> make_batch_norm(CudaDevice& device, const BatchNormDesc& desc) {
  return std::make_unique<CudaBatchNorm>(device, desc);
}

}  // namespace dp::cuda
