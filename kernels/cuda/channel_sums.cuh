// Two sums per channel over all rows of a tensor, in two stages and a fixed order, so that the bits
// are always the same. First a kernel that walks over rows (rows.cuh) leaves its blocks' sums in
// partials[band][2][C]. Then a small second kernel adds the bands' sums in double; each of its
// blocks handles a few channels.
#pragma once

#include "kernels/cuda/rows.cuh"

namespace dp::cuda {

#if defined(__CUDACC__) || defined(DP_CUDA_ON_CPU)

// Reduces the sums of a block's threads to sums of the block. All threads must call it; idle
// threads pass zeros.
template <int N>
__device__ inline void store_block_sums(const RowGrid& grid, const Floats<N>& a, const Floats<N>& b,
                                        float* partials) {
  // [row of the block][a or b][channel of the tile]
  alignas(16) __shared__ float sums[kThreads * 2 * N];
  const unsigned width = grid.tile * N, line = 2 * width;
  const unsigned lane = threadIdx.x % grid.tile, below = threadIdx.x / grid.tile;
  if (below < grid.block_rows) {
    float* const mine = sums + below * line + lane * N;
    if constexpr (N % 4 == 0) {
      // 16 bytes at a time: single floats, N apart, would conflict in the same banks.
      for (int v = 0; v < N; v += 4) {
        *reinterpret_cast<float4*>(mine + v) = make_float4(a[v], a[v + 1], a[v + 2], a[v + 3]);
        *reinterpret_cast<float4*>(mine + width + v) =
            make_float4(b[v], b[v + 1], b[v + 2], b[v + 3]);
      }
    } else {
      for (int v = 0; v < N; ++v) {
        mine[v] = a[v];
        mine[width + v] = b[v];
      }
    }
  }
  // Adds the lower half of the rows to the upper half until one row is left.
  for (unsigned rows = grid.block_rows; rows > 1;) {
    const unsigned half = (rows + 1) / 2;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < (rows - half) * line; i += kThreads) {
      sums[i] += sums[half * line + i];
    }
    rows = half;
  }
  __syncthreads();
  const std::size_t channels = static_cast<std::size_t>(grid.packs) * N;
  const std::size_t first = static_cast<std::size_t>(blockIdx.y) * width;
  for (unsigned i = threadIdx.x; i < line; i += kThreads) {
    const unsigned which = i / width;
    const std::size_t channel = first + (i - which * width);
    if (channel < channels) {
      partials[(static_cast<std::size_t>(blockIdx.x) * 2 + which) * channels + channel] = sums[i];
    }
  }
}

// ---- the second kernel: kThreads threads, kBlockChannels channels per block ---------------------

inline constexpr unsigned kBlockChannels = 8, kBlockLanes = kThreads / kBlockChannels;

struct Sums {
  double a, b;
};

// Returns the sums over all bands, valid in the threads below kBlockChannels, for channel
// blockIdx.x * kBlockChannels + threadIdx.x. All threads must call it.
__device__ inline Sums add_partials(const float* partials, unsigned bands, std::size_t channels) {
  __shared__ double shared[2][kThreads];
  const unsigned lane = threadIdx.x / kBlockChannels;
  const std::size_t channel =
      static_cast<std::size_t>(blockIdx.x) * kBlockChannels + threadIdx.x % kBlockChannels;
  Sums mine{0, 0};
  if (channel < channels) {
    DP_UNROLL_8
    for (unsigned b = lane; b < bands; b += kBlockLanes) {
      const float* at = partials + static_cast<std::size_t>(b) * 2 * channels + channel;
      mine.a += static_cast<double>(at[0]);
      mine.b += static_cast<double>(at[channels]);
    }
  }
  shared[0][threadIdx.x] = mine.a;
  shared[1][threadIdx.x] = mine.b;
  for (unsigned half = kThreads / 2; half >= kBlockChannels; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      shared[0][threadIdx.x] += shared[0][threadIdx.x + half];
      shared[1][threadIdx.x] += shared[1][threadIdx.x + half];
    }
  }
  return {shared[0][threadIdx.x], shared[1][threadIdx.x]};
}

// The channel that this thread finishes; `channels` if there is none.
__device__ inline std::size_t channel_to_finish(std::size_t channels) {
  const std::size_t channel = static_cast<std::size_t>(blockIdx.x) * kBlockChannels + threadIdx.x;
  return threadIdx.x < kBlockChannels && channel < channels ? channel : channels;
}

#endif

}  // namespace dp::cuda
