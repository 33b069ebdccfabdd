// How kernels walk through NHWC tensors: as rows (pixels) of channels, a pack of neighbouring
// channels to a thread. A thread keeps its channels and goes down the rows, so what belongs to a
// channel is loaded once; the threads of a warp read neighbouring packs, in whole rows one behind
// the other where there are few channels.
//
//     const RowGrid grid = row_grid(rows, channels / N, device.multiprocessors() * 4, 16);
//     launch(kernel<T, N>, Launch{.blocks = grid.blocks()}, stream, grid, ...);
//
//     const RowThread thread = row_thread(grid);       // in the kernel
//     for_rows<4>(grid, thread, [&](auto count, std::size_t row) {
//       // rows row, row + thread.step, ... : `count` of them; load all, then calculate
//     });
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/tensor.hpp"

namespace dp::cuda {

struct RowGrid {
  std::size_t rows = 0;
  unsigned packs = 0;             // of a row
  unsigned tile = 1;              // of these, side by side in a block
  unsigned block_rows = 1;        // one below the other in a block
  unsigned tiles = 1, bands = 1;  // blocks side by side, and one below the other

  [[nodiscard]] dim3 blocks() const { return dim3(bands, tiles); }
};

// A grid of blocks of kThreads threads, about `most_blocks` at most, whose threads have
// `thread_rows` rows or more each where that many blocks are not needed. Needs rows and packs > 0.
inline RowGrid row_grid(std::size_t rows, std::size_t packs, unsigned most_blocks,
                        unsigned thread_rows) {
  require(rows > 0 && packs > 0 && packs <= 65535u * kThreads, "a grid over no rows");
  RowGrid grid;
  grid.rows = rows;
  grid.packs = static_cast<unsigned>(packs);
  grid.tiles = (grid.packs + kThreads - 1) / kThreads;
  grid.tile = (grid.packs + grid.tiles - 1) / grid.tiles;
  grid.block_rows = kThreads / grid.tile;
  const std::size_t band = std::size_t{grid.block_rows} * thread_rows;
  const std::size_t most = std::max(1u, most_blocks / grid.tiles);
  grid.bands = static_cast<unsigned>(std::min((rows + band - 1) / band, most));
  return grid;
}

// Calls body(tag, count): *tag is of the data type, and decltype(count)::value is the number of
// elements that a thread moves at once: as many as fit into 16 bytes where `channels` (a row, or an
// offset into one) allows it and `are_aligned`, else 1.
template <class Body>
void with_type_and_pack(DataType type, std::size_t channels, bool are_aligned, const Body& body) {
  const auto with = [&]<class T>(T* tag) {
    if (are_aligned && channels % kPackCount<T> == 0) {
      body(tag, std::integral_constant<int, kPackCount<T>>{});
    } else {
      body(tag, std::integral_constant<int, 1>{});
    }
  };
  if (type == DataType::f32) {
    with(static_cast<float*>(nullptr));
  } else {
    with(static_cast<bf16*>(nullptr));
  }
}

#if defined(__CUDACC__) || defined(DP_CUDA_ON_CPU)

struct RowThread {
  std::size_t row, step;  // the first row, and how far it is to the next one
  unsigned pack;          // of the row
  bool is_idle;           // has no rows; must still come to the block's barriers
};

__device__ inline RowThread row_thread(const RowGrid& grid) {
  const unsigned lane = threadIdx.x % grid.tile, below = threadIdx.x / grid.tile;
  RowThread thread;
  thread.pack = blockIdx.y * grid.tile + lane;
  thread.is_idle = below >= grid.block_rows || thread.pack >= grid.packs;
  thread.step = static_cast<std::size_t>(grid.bands) * grid.block_rows;
  thread.row = static_cast<std::size_t>(blockIdx.x) * grid.block_rows + below;
  return thread;
}

// Calls body(std::integral_constant<int, kUnroll>, row) while there are that many rows, then
// body(std::integral_constant<int, 1>, row).
template <int kUnroll, class Body>
__device__ inline void for_rows(const RowGrid& grid, const RowThread& thread, const Body& body) {
  if (thread.is_idle) return;
  std::size_t row = thread.row;
  for (; row + (kUnroll - 1) * thread.step < grid.rows; row += kUnroll * thread.step) {
    body(std::integral_constant<int, kUnroll>{}, row);
  }
  for (; row < grid.rows; row += thread.step) body(std::integral_constant<int, 1>{}, row);
}

// a / b; the short division where it will do.
__device__ inline std::size_t quotient(std::size_t a, unsigned b) {
  return (a >> 32) == 0 ? static_cast<unsigned>(a) / b : a / b;
}

#endif

}  // namespace dp::cuda
