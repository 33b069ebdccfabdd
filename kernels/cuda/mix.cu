#include "kernels/mix.hpp"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

struct AddScaled {
  float factor;
  __device__ void operator()(float& x, float& y) const { y += factor * x; }
};
struct Blend {
  float weight;
  __device__ void operator()(float& x, float& y) const {
    y = weight == 1.0f ? x : y + weight * (x - y);
  }
};
struct SubtractFrom {
  float weight;
  __device__ void operator()(float& x, float& y) const { y = weight * (x - y); }
};
struct Swap {
  __device__ void operator()(float& x, float& y) const {
    const float kept = x;
    x = y;
    y = kept;
  }
};

template <int N, bool kWritesX, class Op>
__global__ void __launch_bounds__(kThreads)
    mix_kernel(float* x, float* y, std::size_t count, Op op) {
  for (std::size_t i = first_item(); i < count / N; i += item_stride()) {
    Floats<N> a = load_floats<N>(x + i * N), b = load_floats<N>(y + i * N);
    for (int k = 0; k < N; ++k) op(a.values[k], b.values[k]);
    if (kWritesX) store_floats(x + i * N, a);
    store_floats(y + i * N, b);
  }
  const std::size_t rest = count / N * N + first_item();
  if (N > 1 && rest < count) {
    float a = x[rest], b = y[rest];
    op(a, b);
    if (kWritesX) x[rest] = a;
    y[rest] = b;
  }
}

template <bool kWritesX, class Op>
void mix(CudaDevice& device, float* x, std::span<float> y, Op op) {
  if (y.empty()) return;
  const auto start = [&](auto kernel, std::size_t items) {
    const dim3 blocks = blocks_for(items, kThreads, device.multiprocessors() * 8);
    launch(kernel, Launch{.blocks = blocks}, device.stream(), x, y.data(), y.size(), op);
  };
  if (are_aligned(x, y.data())) {
    start(mix_kernel<4, kWritesX, Op>, y.size() / 4);
  } else {
    start(mix_kernel<1, kWritesX, Op>, y.size());
  }
}

}  // namespace

void add_values(CudaDevice& device, std::span<const float> x, std::span<float> y, float factor) {
  mix<false>(device, const_cast<float*>(x.data()), y, AddScaled{factor});
}
void blend_values(CudaDevice& device, std::span<const float> x, std::span<float> y, float weight) {
  mix<false>(device, const_cast<float*>(x.data()), y, Blend{weight});
}
void subtract_from_values(CudaDevice& device, std::span<const float> x, std::span<float> y,
                          float weight) {
  mix<false>(device, const_cast<float*>(x.data()), y, SubtractFrom{weight});
}
void swap_values(CudaDevice& device, std::span<float> x, std::span<float> y) {
  mix<true>(device, x.data(), y, Swap{});
}

}  // namespace dp::cuda
