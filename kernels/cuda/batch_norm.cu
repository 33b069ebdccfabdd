// Batch normalisation in our own kernels. They are memory-bound, so their time depends on how often
// each tensor is read or written. Accesses per element, sweep by sweep:
//
//   forward   x for the statistics | x [, addend] -> y                                    3 (4)
//   backward  without an addend: x, dy [, dy2] | x, dy [, dy2] -> dx                       5 (7)
//             with one: x, y, dy [, dy2] -> d_addend | x, d_addend -> dx                   7 (8)
//
// The number in parentheses includes the tensors in brackets. The time of a pass is that number x
// elements x bytes of the type / memory bandwidth. Data that is still in the L2 cache takes less
// time. The first sweep of each pass therefore starts at the end of the tensor, because the end was
// written last. The second sweep starts at the beginning, because the first sweep has read the
// beginning last.
//
// Sums over the rows have three levels: a thread adds a few values in fp32, a block adds its
// threads' sums by a tree, and a second kernel adds the blocks' sums in double. The order is fixed,
// so the bits are the same every time.
//
// With statistics over all ranks, that second kernel writes this rank's sums into host memory. A
// host function gathers the sums of all ranks, and a third kernel merges them. The device idles
// meanwhile. In a recording the host function is a node of the graph.
#include "kernels/batch_norm.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/batch_moments.hpp"
#include "kernels/cuda/batch_norm_sweeps.cuh"
#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

using namespace batch_norm;

// Kernels that sum run in one wave of blocks, because every block leaves partial sums. Each of
// their threads has at least kLeastRows rows. Kernels that only write run in kWaves waves of
// blocks, which balances the load.
constexpr unsigned kLeastRows = 8, kWaves = 4;

// gamma is null if the layer has no scale. The factor is then 1.
DP_HD inline float gamma_of(const float* gamma, std::size_t channel) {
  return gamma == nullptr ? 1.0f : gamma[channel];
}

// ---- from sums to what the second sweep needs ---------------------------------------------------

// The parameters for normalising a channel and updating its running statistics.
struct Update {
  float epsilon, momentum;
  BatchNorm::Parameters parameters;
};

__device__ inline void set_statistics(Channels channels, std::size_t c, double count, double mean,
                                      double squares, const Update& update) {
  const BatchNorm::Parameters& parameters = update.parameters;
  const double variance = squares < 0 ? 0.0 : squares / count;  // a NaN stays one
  const double unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
  const double inverse = 1.0 / sqrt(variance + static_cast<double>(update.epsilon));
  const float scale = gamma_of(parameters.gamma, c) * static_cast<float>(inverse);
  channels.mean()[c] = static_cast<float>(mean);
  channels.inverse_deviation()[c] = static_cast<float>(inverse);
  channels.scale()[c] = scale;
  channels.shift()[c] = parameters.beta[c] - static_cast<float>(mean) * scale;
  // If a batch is not finite, its training step is skipped, so it must not change the running
  // statistics.
  if (!std::isfinite(mean) || !std::isfinite(unbiased)) return;
  const double part = static_cast<double>(update.momentum);
  float* running_mean = parameters.running_mean + c;
  float* running_var = parameters.running_var + c;
  *running_mean = static_cast<float>((1 - part) * static_cast<double>(*running_mean) + part * mean);
  *running_var =
      static_cast<float>((1 - part) * static_cast<double>(*running_var) + part * unbiased);
}

// Writes the sums to `message` (batch_moments.hpp) if there is one. If there is none, the sums
// cover the whole batch, and the statistics are set here.
template <class T>
__global__ void __launch_bounds__(kThreads)
    finish_statistics_kernel(const float* partials, unsigned bands, Channels channels, const T* x,
                             std::size_t rows, Update update, float* message) {
  const Sums sums = add_partials(partials, bands, channels.count);
  const std::size_t c = channel_to_finish(channels.count);
  if (c == channels.count) return;
  const double count = static_cast<double>(rows);
  const double distance = sums.a / count;  // of the mean from the pivot
  const double mean = static_cast<double>(to_float(x[c])) + distance;
  const double squares = sums.b - distance * sums.a;
  if (message == nullptr) {
    set_statistics(channels, c, count, mean, squares, update);
    return;
  }
  if (c == 0) message[0] = static_cast<float>(count);
  message[1 + c] = static_cast<float>(mean);
  message[1 + channels.count + c] = squares < 0 ? 0.0f : static_cast<float>(squares);
}

__global__ void __launch_bounds__(kThreads)
    merge_statistics_kernel(const float* all, std::size_t ranks, Channels channels, Update update) {
  const std::size_t c = first_item();  // no loop, because its state would need a stack
  if (c >= channels.count) return;
  const BatchMoments batch = merge_moments(all, ranks, channels.count, c);
  set_statistics(channels, c, batch.count, batch.mean, batch.squares, update);
}

__global__ void __launch_bounds__(kThreads)
    running_statistics_kernel(Channels channels, float epsilon, BatchNorm::Parameters parameters) {
  for (std::size_t c = first_item(); c < channels.count; c += item_stride()) {
    const double variance = static_cast<double>(parameters.running_var[c]);
    const double inverse = 1.0 / sqrt(variance + static_cast<double>(epsilon));
    const float scale = gamma_of(parameters.gamma, c) * static_cast<float>(inverse);
    channels.running_scale()[c] = scale;
    channels.running_shift()[c] = parameters.beta[c] - parameters.running_mean[c] * scale;
  }
}

// Computes the two coefficients of dx = gamma / deviation * (g - mean(g) - xhat * mean(g * xhat)).
__device__ inline void set_coefficients(Channels channels, std::size_t c, double count, double sum,
                                        double product, const float* gamma) {
  const double inverse = static_cast<double>(channels.inverse_deviation()[c]);
  const double factor = static_cast<double>(gamma_of(gamma, c)) * inverse;
  channels.offset()[c] = static_cast<float>(factor * sum / count);
  channels.slope()[c] = static_cast<float>(factor * product * inverse * inverse / count);
}

// Computes d_beta = sum g and d_gamma = sum g * xhat. Writes the sums to `message` if there is one.
__global__ void __launch_bounds__(kThreads)
    finish_gradients_kernel(const float* partials, unsigned bands, Channels channels,
                            std::size_t rows, const float* gamma, float* d_gamma, float* d_beta,
                            float* message) {
  const Sums sums = add_partials(partials, bands, channels.count);
  const std::size_t c = channel_to_finish(channels.count);
  if (c == channels.count) return;
  const double count = static_cast<double>(rows);
  const double inverse = static_cast<double>(channels.inverse_deviation()[c]);
  d_beta[c] = static_cast<float>(sums.a);
  if (d_gamma != nullptr) d_gamma[c] = static_cast<float>(sums.b * inverse);
  if (message == nullptr) {
    set_coefficients(channels, c, count, sums.a, sums.b, gamma);
    return;
  }
  if (c == 0) message[0] = static_cast<float>(count);
  message[1 + c] = static_cast<float>(sums.a);
  message[1 + channels.count + c] = static_cast<float>(sums.b);
}

__global__ void __launch_bounds__(kThreads)
    merge_gradients_kernel(const float* all, std::size_t ranks, Channels channels,
                           const float* gamma) {
  for (std::size_t c = first_item(); c < channels.count; c += item_stride()) {
    const GradientSums sums = merge_sums(all, ranks, channels.count, c);
    set_coefficients(channels, c, sums.count, sums.sum, sums.product, gamma);
  }
}

// ---- the operation -----------------------------------------------------------------------------

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
    require(desc.x.is_nhwc(),
            "batch normalisation on a GPU needs the NHWC layout, not channel blocks");
    if (rows_ == 0 || channels_.count == 0) return;
    // Reserve enough for the variant that reads single elements. It has the most bands of rows, so
    // it needs the most scratch memory.
    const std::size_t bands = sum_grid(1, std::max(kForwardBlocks, kBackwardBlocks)).bands;
    device.reserve_scratch(bands * 2 * channels_.count * sizeof(float));
    if (desc.gather == nullptr) return;
    const std::size_t floats = moments_floats(channels_.count), ranks = desc.gather->ranks();
    messages_ = device.allocate_host((1 + ranks) * floats * sizeof(float));
    float* const first = reinterpret_cast<float*>(messages_.get());
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      gathers_[static_cast<std::size_t>(pass)] = {
          &device, desc.gather, pass, {first, floats}, {first + floats, ranks * floats}};
    }
    desc.gather->reserve(floats);
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
             partials(), grid.bands, channels_, x.as<const T>(), rows_, update(parameters),
             message());
    });
    if (desc_.gather != nullptr) gather_statistics(parameters);
    normalise(x, addend, channels_.scale(), channels_.shift(), y);
  }

  void forward_inference(const TensorView& x, const TensorView& addend,
                         const Parameters& parameters, const TensorView& y) override {
    if (rows_ == 0 || channels_.count == 0) return;
    launch(running_statistics_kernel, Launch{.blocks = blocks_for(channels_.count)},
           device_.stream(), channels_, desc_.epsilon, parameters);
    normalise(x, addend, channels_.running_scale(), channels_.running_shift(), y);
  }

  void forward_without_images(const Parameters& parameters) override {
    clear_message();
    gather_statistics(parameters);
  }

  void backward_without_images() override {
    clear_message();
    gather(Pass::backward);
  }

  void backward(const TensorView& x, const TensorView& y, const Parameters& parameters,
                const Gradients& gradients) override {
    require(static_cast<bool>(gradients.d_addend) == desc_.has_addend,
            "the addend's gradient must be given if there is an addend, and only then");
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
  // The arguments of the host function.
  struct Gather {
    CudaDevice* device = nullptr;
    RankGather* desk = nullptr;
    Pass pass = Pass::forward;
    std::span<float> mine, all;
  };

  [[nodiscard]] Update update(const Parameters& parameters) const {
    return {desc_.epsilon, desc_.momentum, parameters};
  }
  [[nodiscard]] float* message() const { return reinterpret_cast<float*>(messages_.get()); }

  // Enqueues function(data), which a thread of CUDA will call. The function must not call CUDA. It
  // may wait for other threads; the operations of other streams continue meanwhile.
  void call_host(cudaHostFn_t function, void* data) const {
    DP_CHECK_CUDA(cudaLaunchHostFunc(device_.stream(), function, data));
  }

  // Does nothing until the ranks are connected. Until then, operations are enqueued only to load
  // their kernels (expect_host_waits), and the queue must not contain a host function.
  void gather(Pass pass) {
    if (!desc_.gather->is_served()) return;
    const auto wait_for_ranks = [](void* data) {
      const auto& given = *static_cast<Gather*>(data);
      const DeviceWaits::HostFunction waits(given.device->waits());
      try {
        given.desk->gather(given.pass, given.mine, given.all);
      } catch (...) {
        // An exception must not leave CUDA's thread. The error is not lost: whoever waits for the
        // exchange gets it, too.
        std::ranges::fill(given.all, std::numeric_limits<float>::quiet_NaN());
      }
    };
    call_host(wait_for_ranks, &gathers_[static_cast<std::size_t>(pass)]);
  }

  void gather_statistics(const Parameters& parameters) {
    gather(Pass::forward);
    launch(merge_statistics_kernel, Launch{.blocks = blocks_for(channels_.count)}, device_.stream(),
           all(), desc_.gather->ranks(), channels_, update(parameters));
  }
  [[nodiscard]] const float* all() const { return gathers_[0].all.data(); }

  // This is an operation in the queue, because earlier operations may still use the message.
  void clear_message() {
    const auto clear = [](void* data) {
      std::ranges::fill(static_cast<Gather*>(data)->mine, 0.0f);
    };
    call_host(clear, gathers_.data());
  }

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
            "an addend must be given if the description has one, and only then");
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
           sums.bands, channels_, rows_, parameters.gamma, gradients.d_gamma, gradients.d_beta,
           message());
    if (desc_.gather != nullptr) {
      gather(Pass::backward);
      launch(merge_gradients_kernel, Launch{.blocks = blocks_for(channels_.count)},
             device_.stream(), all(), desc_.gather->ranks(), channels_, parameters.gamma);
    }
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
  Device::Memory messages_;          // of this rank and of all, with a RankGather
  std::array<Gather, 2> gathers_{};  // by pass
};

}  // namespace

std::unique_ptr<BatchNorm> make_batch_norm(CudaDevice& device, const BatchNormDesc& desc) {
  return std::make_unique<CudaBatchNorm>(device, desc);
}

}  // namespace dp::cuda
