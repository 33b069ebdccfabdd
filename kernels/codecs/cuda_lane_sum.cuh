// lane_sum() over tiles of a segment on a GPU, with the same bits as on the host.
#pragma once

#include <cstddef>

#include "kernels/codecs/lane_sum.hpp"
#include "kernels/cuda/launch.cuh"

namespace dp::cuda {

// sums[tile] = lane_sum<T>() of term(i) over the values i of the tile. All threads of the grid must
// call it; half a warp adds a tile.
template <class T, class Term>
__device__ void sum_tiles(std::size_t n, T* sums, Term term) {
  const std::size_t tiles = (n + kSumTile - 1) / kSumTile;
  const unsigned lane = threadIdx.x % 16;
  for (std::size_t pair = first_item() / 32; 2 * pair < tiles; pair += item_stride() / 32) {
    const std::size_t tile = 2 * pair + threadIdx.x % 32 / 16;
    const std::size_t begin = tile * kSumTile;
    const std::size_t end = begin >= n ? begin : begin + kSumTile < n ? begin + kSumTile : n;
    T sum{};
    for (std::size_t i = begin + lane; i < end; i += 16) sum += term(i);
    for (unsigned offset = 8; offset > 0; offset /= 2) {
      sum += __shfl_down_sync(0xFFFFFFFFu, sum, offset, 16);
    }
    if (lane == 0 && tile < tiles) sums[tile] = sum;
  }
}

inline Launch launch_for_tiles(std::size_t n) {
  return {.blocks = blocks_for((n + kSumTile - 1) / kSumTile, kThreads / 16), .threads = kThreads};
}

}  // namespace dp::cuda
