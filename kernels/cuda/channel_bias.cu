// The bias of convolutions. Sums over rows are made as in batch normalisation (channel_sums.cuh).
#include "kernels/channel_bias.hpp"

#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

constexpr unsigned kBiasUnroll = 4, kBiasBlocks = 4, kLeastBiasRows = 8;

template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_kernel(RowGrid grid, const float* bias, T* y) {
  const RowThread thread = row_thread(grid);
  const std::size_t channels = static_cast<std::size_t>(grid.packs) * N;
  const std::size_t column = static_cast<std::size_t>(thread.pack) * N;
  Floats<N> added{};
  if (!thread.is_idle) {
    for (int v = 0; v < N; ++v) added[v] = bias[column + static_cast<std::size_t>(v)];
  }
  for_rows<kBiasUnroll>(thread, [&](auto unroll, std::size_t row) {
    Pack<T, N> packs[unroll];
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = (row + static_cast<std::size_t>(u) * thread.step) * channels + column;
      packs[u] = load_pack<T, N>(y + at);
    }
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = (row + static_cast<std::size_t>(u) * thread.step) * channels + column;
      Floats<N> values = to_floats(packs[u]);
      for (int v = 0; v < N; ++v) values[v] += added[v];
      store_floats(y + at, values);
    }
  });
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    bias_sums_kernel(RowGrid grid, const T* dy, float* partials) {
  const RowThread thread = row_thread(grid);
  const std::size_t channels = static_cast<std::size_t>(grid.packs) * N;
  const T* column = dy + static_cast<std::size_t>(thread.pack) * N;
  Floats<N> sum{}, none{};
  for_rows<kBiasUnroll>(thread, [&](auto unroll, std::size_t row) {
    Pack<T, N> packs[unroll];
    for (int u = 0; u < unroll; ++u) {
      const std::size_t at = (row + static_cast<std::size_t>(u) * thread.step) * channels;
      packs[u] = load_pack<T, N>(column + at);
    }
    for (int v = 0; v < N; ++v) {
      float part = 0;
      for (int u = 0; u < unroll; ++u) part += to_float(packs[u].values[v]);
      sum[v] += part;
    }
  });
  store_block_sums(grid, sum, none, partials);
}

__global__ void __launch_bounds__(kThreads)
    finish_bias_kernel(const float* partials, unsigned bands, std::size_t channels,
                       float* gradient) {
  const Sums sums = add_partials(partials, bands, channels);
  const std::size_t c = channel_to_finish(channels);
  if (c < channels) gradient[c] = static_cast<float>(sums.a);
}

class CudaChannelBias final : public ChannelBias {
 public:
  CudaChannelBias(CudaDevice& device, const TensorDesc& y)
      : device_(device), desc_(y), rows_(y.shape.n * y.shape.pixels()) {
    require(y.is_nhwc(), "a bias on a GPU needs the NHWC layout, not channel blocks");
    if (rows_ == 0 || y.shape.c == 0) return;
    // Reserve enough for the variant that reads single elements. It has the most bands of rows, so
    // it needs the most scratch memory.
    device.reserve_scratch(grid(1, Walk::side_by_side).bands * 2 * y.shape.c * sizeof(float));
  }

  void add(const TensorView& y, const float* bias) override {
    with_pack(y, [&](auto* tag, auto n) {
      using T = std::remove_pointer_t<decltype(tag)>;
      constexpr int kN = decltype(n)::value;
      const RowGrid all = grid(kN, Walk::in_bands);
      launch(add_kernel<T, kN>, Launch{.blocks = all.blocks()}, device_.stream(), all, bias,
             y.as<T>());
    });
  }

  void backward(const TensorView& dy, float* bias_gradient) override {
    auto* partials = reinterpret_cast<float*>(device_.scratch());
    with_pack(dy, [&](auto* tag, auto n) {
      using T = std::remove_pointer_t<decltype(tag)>;
      constexpr int kN = decltype(n)::value;
      const RowGrid all = grid(kN, Walk::side_by_side);
      launch(bias_sums_kernel<T, kN>, Launch{.blocks = all.blocks()}, device_.stream(), all,
             dy.as<const T>(), partials);
      launch(finish_bias_kernel, Launch{.blocks = blocks_for(desc_.shape.c, kBlockChannels)},
             device_.stream(), partials, all.bands, desc_.shape.c, bias_gradient);
    });
  }

 private:
  [[nodiscard]] RowGrid grid(int width, Walk walk) const {
    const std::size_t packs = desc_.shape.c / static_cast<std::size_t>(width);
    return row_grid(rows_, packs, walk, device_.multiprocessors() * kBiasBlocks, kLeastBiasRows,
                    kBiasUnroll);
  }

  template <class Body>
  void with_pack(const TensorView& tensor, const Body& body) const {
    if (rows_ == 0 || desc_.shape.c == 0) return;
    with_type_and_pack(desc_.type, desc_.shape.c, are_aligned(tensor.data), body);
  }

  CudaDevice& device_;
  TensorDesc desc_;
  std::size_t rows_;
};

}  // namespace

std::unique_ptr<ChannelBias> make_channel_bias(CudaDevice& device, const TensorDesc& y) {
  return std::make_unique<CudaChannelBias>(device, y);
}

}  // namespace dp::cuda
