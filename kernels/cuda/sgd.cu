// The update is one kernel over all parameters, four per thread if they are aligned. The sum of
// squares takes two kernels: a fixed number of blocks leaves partial sums in double, and one block
// adds them, so the bits are the same on every GPU.
#include "kernels/sgd.hpp"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// ---- the update: 20 bytes a parameter, 12 without momentum --------------------------------------

// Performs the same operations in the same order as the CPU twin, without fused multiply-adds, so
// the bits are equal.
__device__ void update(const SgdStep& s, float scale, float gradient, float& parameter,
                       float& velocity) {
  const float g = gradient * scale + s.weight_decay * parameter;
  if (s.momentum == 0.0f) {
    parameter -= s.learning_rate * g;
    return;
  }
  velocity = s.momentum * velocity + g;
  parameter -= s.learning_rate * (s.has_nesterov ? g + s.momentum * velocity : velocity);
}

// step and squares are in host memory, so only one thread of each block reads them.
template <int N>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(float* parameters, const float* gradients, float* velocity, std::size_t count,
               const SgdStep* step, const double* squares) {
  __shared__ float settings[4];
  __shared__ int has_nesterov;
  if (threadIdx.x == 0) {
    settings[0] = step->learning_rate;
    settings[1] = step->momentum;
    settings[2] = step->weight_decay;
    settings[3] = squares == nullptr ? 1.0f : clip_scale(step->clip_norm, *squares);
    has_nesterov = step->has_nesterov ? 1 : 0;
  }
  __syncthreads();
  const SgdStep s{settings[0], settings[1], settings[2], has_nesterov != 0, 0.0};
  const float scale = settings[3];
  for (std::size_t i = first_item(); i < count / N; i += item_stride()) {
    const Floats<N> g = load_floats<N>(gradients + i * N);
    Floats<N> w = load_floats<N>(parameters + i * N), v = {};
    if (s.momentum != 0.0f) v = load_floats<N>(velocity + i * N);
    for (int k = 0; k < N; ++k) update(s, scale, g[k], w.values[k], v.values[k]);
    if (s.momentum != 0.0f) store_floats(velocity + i * N, v);
    store_floats(parameters + i * N, w);
  }
  const std::size_t rest = count / N * N + first_item();
  if (N > 1 && rest < count) update(s, scale, gradients[rest], parameters[rest], velocity[rest]);
}

// ---- the norm -----------------------------------------------------------------------------------

constexpr unsigned kSquareBlocks = 512;  // a fixed number: the bits do not depend on the GPU

template <int N>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const float* values, std::size_t count, double* partials) {
  __shared__ double shared[32];
  Floats<N> none{};
  double sum[4] = {};
  const std::size_t stride = item_stride(), packs = count / N;
  for (std::size_t i = first_item(); i < packs; i += 4 * stride) {
    Floats<N> x[4];
    for (unsigned u = 0; u < 4; ++u) {
      x[u] = i + u * stride < packs ? load_floats<N>(values + (i + u * stride) * N) : none;
    }
    for (unsigned u = 0; u < 4; ++u) {
      for (int k = 0; k < N; ++k) {
        const double value = static_cast<double>(x[u][k]);
        sum[u] += value * value;
      }
    }
  }
  double total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  const std::size_t rest = packs * N + first_item();
  if (N > 1 && rest < count) {
    const double value = static_cast<double>(values[rest]);
    total += value * value;
  }
  total = block_sum(total, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    add_squares_kernel(const double* partials, unsigned count, double* sum) {
  __shared__ double shared[32];
  double total = 0;
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) total += partials[i];
  total = block_sum(total, shared);
  if (threadIdx.x == 0) {
    *sum = total;
    __threadfence_system();
  }
}

}  // namespace

void sgd_update(CudaDevice& device, std::span<float> parameters, std::span<const float> gradients,
                std::span<float> velocity, const SgdStep* step, const double* squares) {
  const std::size_t count = parameters.size();
  if (count == 0) return;
  const auto start = [&](auto kernel, std::size_t items) {
    const dim3 blocks = blocks_for(items, kThreads, device.multiprocessors() * 8);
    launch(kernel, Launch{.blocks = blocks}, device.stream(), parameters.data(), gradients.data(),
           velocity.data(), count, step, squares);
  };
  if (are_aligned(parameters.data(), gradients.data(), velocity.data())) {
    start(sgd_kernel<4>, count / 4);
  } else {
    start(sgd_kernel<1>, count);
  }
}

void sum_of_squares(CudaDevice& device, std::span<const float> values, double* sum) {
  static_assert(kSquareBlocks * sizeof(double) <= CudaDevice::kLeastScratchBytes);
  auto* partials = reinterpret_cast<double*>(device.scratch());
  const auto start = [&](auto kernel) {
    launch(kernel, Launch{.blocks = dim3(kSquareBlocks)}, device.stream(), values.data(),
           values.size(), partials);
  };
  if (are_aligned(values.data())) {
    start(squares_kernel<4>);
  } else {
    start(squares_kernel<1>);
  }
  launch(add_squares_kernel, Launch{}, device.stream(), partials, kSquareBlocks, sum);
}

}  // namespace dp::cuda
