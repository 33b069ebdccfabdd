// Muon's loops over values; muon_products.cpp has its matrix products.
#include "kernels/muon.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// These kernels perform the same operations in the same order as the CPU twins, without fused
// multiply-adds, so the bits are equal. Only one thread of each block reads arguments in host
// memory.

__global__ void __launch_bounds__(kThreads)
    direction_kernel(const float* gradients, float* velocity, float* x, std::size_t count,
                     const MuonStep* step, const double* squares) {
  __shared__ float shared[2];
  __shared__ int has_nesterov;
  if (threadIdx.x == 0) {
    shared[0] = step->momentum;
    shared[1] = squares == nullptr ? 1.0f : clip_scale(step->clip_norm, *squares);
    has_nesterov = step->has_nesterov ? 1 : 0;
  }
  __syncthreads();
  const float momentum = shared[0], scale = shared[1];
  for (std::size_t i = first_item(); i < count; i += item_stride()) {
    const float g = gradients[i] * scale;
    const float v = momentum * velocity[i] + g;
    velocity[i] = v;
    x[i] = has_nesterov != 0 ? g + momentum * v : v;
  }
}

__global__ void __launch_bounds__(kThreads)
    normalise_kernel(float* x, std::size_t count, const double* squares) {
  __shared__ float shared;
  if (threadIdx.x == 0) shared = muon_inverse_norm(*squares);
  __syncthreads();
  const float factor = shared;
  for (std::size_t i = first_item(); i < count; i += item_stride()) x[i] *= factor;
}

__global__ void __launch_bounds__(kThreads)
    apply_kernel(float* parameters, const float* x, std::size_t count, double rows,
                 const MuonStep* step, const double* squares) {
  __shared__ float shared[2];
  if (threadIdx.x == 0) {
    shared[0] = step->learning_rate;
    shared[1] = muon_factor(*step, rows, squares);
  }
  __syncthreads();
  const float rate = shared[0], factor = shared[1];
  for (std::size_t i = first_item(); i < count; i += item_stride()) {
    parameters[i] = parameters[i] * factor - rate * x[i];
  }
}

dim3 blocks_of(const CudaDevice& device, std::size_t count) {
  return blocks_for(count, kThreads, device.multiprocessors() * 8);
}

}  // namespace

void muon_direction(CudaDevice& device, std::span<const float> gradients, std::span<float> velocity,
                    std::span<float> x, const MuonStep* step, const double* squares) {
  launch(direction_kernel, Launch{.blocks = blocks_of(device, x.size())}, device.stream(),
         gradients.data(), velocity.data(), x.data(), x.size(), step, squares);
}

void muon_normalise(CudaDevice& device, std::span<float> x, const double* squares) {
  launch(normalise_kernel, Launch{.blocks = blocks_of(device, x.size())}, device.stream(), x.data(),
         x.size(), squares);
}

void muon_apply(CudaDevice& device, std::span<float> parameters, std::span<const float> x,
                std::size_t rows, const MuonStep* step, const double* squares) {
  launch(apply_kernel, Launch{.blocks = blocks_of(device, x.size())}, device.stream(),
         parameters.data(), x.data(), x.size(), static_cast<double>(rows), step, squares);
}

}  // namespace dp::cuda
