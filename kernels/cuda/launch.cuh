// The one way in which kernels are started, and what kernels share: grid-stride loops and sums over
// a block in a fixed order.
//
//     launch(scale_kernel, Launch{.blocks = dim3(n), .threads = 256}, device.stream(), x, count);
//
// Under DP_CUDA_ON_CPU (tests) the same call runs the kernel on the processor.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/cuda_check.hpp"

namespace dp::cuda {

struct Launch {
  dim3 blocks = dim3(1);
  unsigned threads = 256;  // a block; a multiple of 32
};

inline constexpr unsigned kThreads = 256;

// Blocks of `threads` for so many items, at most `most` (the rest is done by grid-stride loops).
inline dim3 blocks_for(std::size_t items, unsigned threads = kThreads, unsigned most = 1u << 16) {
  const std::size_t blocks = (items + threads - 1) / threads;
  return dim3(static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks));
}

#ifdef DP_CUDA_ON_CPU

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& how, cudaStream_t stream,
            Arguments... arguments) {
  DP_CHECK_CUDA(cuda_on_cpu::launch_kernel(how.blocks, how.threads, stream, kernel,
                                           static_cast<Parameters>(arguments)...));
}

#else

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& how, cudaStream_t stream,
            Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = how.blocks;
  config.blockDim = dim3(how.threads);
  config.stream = stream;
  DP_CHECK_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

#endif

// In front of a loop of a kernel whose count is not known: eight iterations' loads in flight.
#ifdef __CUDACC__
#define DP_UNROLL_8 _Pragma("unroll 8")
#else
#define DP_UNROLL_8
#endif

#if defined(__CUDACC__) || defined(DP_CUDA_ON_CPU)

// This thread's first item and its stride in a loop over items by the whole (one-dimensional) grid.
__device__ inline std::size_t first_item() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t item_stride() {
  return static_cast<std::size_t>(gridDim.x) * blockDim.x;
}

// The sum of every thread's value, in thread 0; by a fixed tree, so the same bits every time.
// `shared` has 32 places. All threads of the block call it; blockDim.x is a multiple of 32.
template <class T>
__device__ T block_sum(T value, T* shared) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xFFFFFFFFu, value, static_cast<unsigned>(offset));
  }
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  __syncthreads();  // of an earlier use of `shared`
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < warps; ++w) value += shared[w];
  }
  return value;
}

#endif

}  // namespace dp::cuda
