#include "kernels/adam.hpp"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/twins.hpp"
#include "kernels/sgd.hpp"

namespace dp::cuda {

namespace {

// The values of an AdamStep that a thread needs, and the clipping factor.
struct Numbers {
  float scale, keep, decay, one_minus_beta1, beta2, one_minus_beta2, size, square_root_end, epsilon;
};

// Performs the same operations in the same order as the CPU twin, without fused multiply-adds, so
// the bits are equal.
__device__ void update(const Numbers& s, float gradient, float& parameter, float& mean,
                       float& square) {
  const float kept = s.keep * parameter;
  const float g = gradient * s.scale + s.decay * kept;
  mean += s.one_minus_beta1 * (g - mean);
  square = s.beta2 * square + s.one_minus_beta2 * (g * g);
  const float root = sqrtf(square) / s.square_root_end + s.epsilon;
  parameter = kept - s.size * (mean / root);
}

// Memory traffic: 28 bytes per parameter. step and squares are in host memory, so only one thread
// of each block reads them.
template <int N>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(float* parameters, const float* gradients, float* mean, float* square,
                std::size_t count, const AdamStep* step, const double* squares) {
  __shared__ float shared[9];
  if (threadIdx.x == 0) {
    shared[0] = squares == nullptr ? 1.0f : clip_scale(step->clip_norm, *squares);
    shared[1] = step->keep;
    shared[2] = step->decay;
    shared[3] = step->one_minus_beta1;
    shared[4] = step->beta2;
    shared[5] = step->one_minus_beta2;
    shared[6] = step->size;
    shared[7] = step->square_root_end;
    shared[8] = step->epsilon;
  }
  __syncthreads();
  const Numbers s{shared[0], shared[1], shared[2], shared[3], shared[4],
                  shared[5], shared[6], shared[7], shared[8]};
  for (std::size_t i = first_item(); i < count / N; i += item_stride()) {
    const Floats<N> g = load_floats<N>(gradients + i * N);
    Floats<N> w = load_floats<N>(parameters + i * N), m = load_floats<N>(mean + i * N),
              v = load_floats<N>(square + i * N);
    for (int k = 0; k < N; ++k) update(s, g[k], w.values[k], m.values[k], v.values[k]);
    store_floats(mean + i * N, m);
    store_floats(square + i * N, v);
    store_floats(parameters + i * N, w);
  }
  const std::size_t rest = count / N * N + first_item();
  if (N > 1 && rest < count) update(s, gradients[rest], parameters[rest], mean[rest], square[rest]);
}

}  // namespace

void adam_update(CudaDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> mean, std::span<float> square, const AdamStep* step,
                 const double* squares) {
  const std::size_t count = parameters.size();
  if (count == 0) return;
  const auto start = [&](auto kernel, std::size_t items) {
    const dim3 blocks = blocks_for(items, kThreads, device.multiprocessors() * 8);
    launch(kernel, Launch{.blocks = blocks}, device.stream(), parameters.data(), gradients.data(),
           mean.data(), square.data(), count, step, squares);
  };
  if (are_aligned(parameters.data(), gradients.data(), mean.data(), square.data())) {
    start(adam_kernel<4>, count / 4);
  } else {
    start(adam_kernel<1>, count);
  }
}

}  // namespace dp::cuda
