#include "kernels/lars.hpp"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

struct Numbers {
  float learning_rate, momentum, weight_decay, scale, ratio;
};

// Performs the same operations in the same order as the CPU twin, without fused multiply-adds, so
// the bits are equal.
__device__ void update(const Numbers& s, float gradient, float& parameter, float& velocity) {
  const float g = s.ratio * (gradient * s.scale + s.weight_decay * parameter);
  velocity = s.momentum * velocity + g;
  parameter -= s.learning_rate * velocity;
}

// step, norms and squares are in host memory, so only one thread of each block reads them.
template <int N>
__global__ void __launch_bounds__(kThreads)
    lars_kernel(float* parameters, const float* gradients, float* velocity, std::size_t count,
                const LarsStep* step, const LarsNorms* norms, const double* squares) {
  __shared__ float shared[5];
  if (threadIdx.x == 0) {
    shared[0] = step->learning_rate;
    shared[1] = step->momentum;
    shared[2] = step->weight_decay;
    shared[3] = squares == nullptr ? 1.0f : clip_scale(step->clip_norm, *squares);
    shared[4] = lars_ratio(*step, *norms, shared[3]);
  }
  __syncthreads();
  const Numbers s{shared[0], shared[1], shared[2], shared[3], shared[4]};
  for (std::size_t i = first_item(); i < count / N; i += item_stride()) {
    const Floats<N> g = load_floats<N>(gradients + i * N);
    Floats<N> w = load_floats<N>(parameters + i * N), v = load_floats<N>(velocity + i * N);
    for (int k = 0; k < N; ++k) update(s, g[k], w.values[k], v.values[k]);
    store_floats(velocity + i * N, v);
    store_floats(parameters + i * N, w);
  }
  const std::size_t rest = count / N * N + first_item();
  if (N > 1 && rest < count) update(s, gradients[rest], parameters[rest], velocity[rest]);
}

}  // namespace

void lars_update(CudaDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> velocity, const LarsStep* step, const LarsNorms* norms,
                 const double* squares) {
  const std::size_t count = parameters.size();
  if (count == 0) return;
  const auto start = [&](auto kernel, std::size_t items) {
    const dim3 blocks = blocks_for(items, kThreads, device.multiprocessors() * 8);
    launch(kernel, Launch{.blocks = blocks}, device.stream(), parameters.data(), gradients.data(),
           velocity.data(), count, step, norms, squares);
  };
  if (are_aligned(parameters.data(), gradients.data(), velocity.data())) {
    start(lars_kernel<4>, count / 4);
  } else {
    start(lars_kernel<1>, count);
  }
}

}  // namespace dp::cuda
