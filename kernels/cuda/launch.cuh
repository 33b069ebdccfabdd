// The only way to launch kernels, and helpers for kernels: grid-stride loops and block sums in a
// fixed order.
//
//     launch(scale_kernel, Launch{.blocks = dim3(n), .threads = 256}, device.stream(), x, count);
//
// Under DP_CUDA_ON_CPU (tests) the same call runs the kernel on the CPU.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/cuda_check.hpp"

namespace dp::cuda {

struct Launch {
  dim3 blocks = dim3(1);
  unsigned threads = 256;  // per block; a multiple of 32
};

inline constexpr unsigned kThreads = 256;

// The number of blocks of `threads` threads for this many items, at most `most` (grid-stride loops
// do the rest).
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

// Precedes a kernel's loop of unknown length: keeps the loads of eight iterations in flight.
#ifdef __CUDACC__
#define DP_UNROLL_8 _Pragma("unroll 8")
#else
#define DP_UNROLL_8
#endif

#if defined(__CUDACC__) || defined(DP_CUDA_ON_CPU)

// This thread's first item and its stride in a loop of the whole (one-dimensional) grid over items.
__device__ inline std::size_t first_item() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t item_stride() {
  return static_cast<std::size_t>(gridDim.x) * blockDim.x;
}

// Returns the sum of all threads' values, in thread 0; added in a fixed tree, so the bits are the
// same every time. `shared` has 32 elements. All threads of the block must call it; blockDim.x must
// be a multiple of 32.
template <class T>
__device__ T block_sum(T value, T* shared) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xFFFFFFFFu, value, static_cast<unsigned>(offset));
  }
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  __syncthreads();  // an earlier use of `shared` must have ended
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < warps; ++w) value += shared[w];
  }
  return value;
}

#endif

}  // namespace dp::cuda
