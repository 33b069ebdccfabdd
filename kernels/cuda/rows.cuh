// How kernels walk through NHWC tensors: as rows (pixels) of channels, with a *pack* of
// neighbouring channels per thread. A thread keeps its channels and walks down the rows, so
// per-channel values are loaded once. The threads of a warp read neighbouring packs; if there are
// few channels, they read several whole rows in sequence.
//
//     const RowGrid grid =
//         row_grid(rows, channels / N, Walk::in_bands, device.multiprocessors() * 8, 4, 4);
//     launch(kernel<T, N>, Launch{.blocks = grid.blocks()}, stream, grid, ...);
//
//     const RowThread thread = row_thread(grid);       // in the kernel
//     for_rows<4>(thread, [&](auto count, std::size_t row) {
//       // rows row, row + thread.step, ... : `count` of them; load all, then calculate
//     });
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/tensor.hpp"

namespace dp::cuda {

// How blocks divide the rows. side_by_side: all blocks move down the tensor together. If all of
// them run at the same time, they read the tensor from one end to the other. in_bands: each block
// processes a band of consecutive rows. If only a few blocks run at the same time, they, too, read
// the tensor from one end to the other.
enum class Walk { side_by_side, in_bands };

struct RowGrid {
  std::size_t rows = 0;
  unsigned packs = 0;             // per row
  unsigned tile = 1;              // packs side by side in a block
  unsigned block_rows = 1;        // rows below one another in a block
  unsigned tiles = 1, bands = 1;  // blocks side by side, and below one another
  std::size_t step = 1;           // from a thread's row to its next one
  std::size_t block_step = 1;     // from a block's first row to the next block's
  std::size_t reach = 0;          // rows from a block's first row to the end of its work

  [[nodiscard]] dim3 blocks() const { return dim3(bands, tiles); }
};

// A grid of at most `most_blocks` blocks (but at least one per column) of kThreads threads. The
// number of rows of a thread is at least `least_rows` and a multiple of `unroll`, the number of
// rows that the thread's loop processes at once. Only a few threads at the end of the tensor get
// another number. rows and packs must be > 0.
inline RowGrid row_grid(std::size_t rows, std::size_t packs, Walk walk, unsigned most_blocks,
                        unsigned least_rows, unsigned unroll) {
  require(rows > 0 && packs > 0 && packs <= 65535u * kThreads,
          "a grid needs at least one row, and its packs must fit 65535 blocks");
  const auto rounded_up = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
  RowGrid grid;
  grid.rows = rows;
  grid.packs = static_cast<unsigned>(packs);
  grid.tiles = (grid.packs + kThreads - 1) / kThreads;
  grid.tile = (grid.packs + grid.tiles - 1) / grid.tiles;
  grid.block_rows = kThreads / grid.tile;
  const std::size_t most_bands = std::max(1u, most_blocks / grid.tiles);
  const std::size_t needed = rounded_up(rows, most_bands * grid.block_rows);
  const std::size_t thread_rows =
      rounded_up(std::max<std::size_t>(needed, least_rows), unroll) * unroll;
  grid.bands = static_cast<unsigned>(rounded_up(rows, thread_rows * grid.block_rows));
  const bool has_bands = walk == Walk::in_bands;
  grid.step = has_bands ? grid.block_rows : std::size_t{grid.bands} * grid.block_rows;
  grid.block_step = has_bands ? thread_rows * grid.block_rows : grid.block_rows;
  grid.reach = has_bands ? grid.block_step : rows;
  return grid;
}

// Calls body(tag, count): *tag has the data type, and decltype(count)::value is the number of
// elements that a thread moves in one access. Let P be the number of elements in 16 bytes. The
// count is P if the addresses are aligned and `channels` (the length of a row, or an offset into a
// row) is a multiple of P, else 1.
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
  std::size_t row, end, step;  // first row, end, distance to the next row
  unsigned pack;               // index in the row
  bool is_idle;                // has no rows, but must reach the block's barriers
};

__device__ inline RowThread row_thread(const RowGrid& grid) {
  const unsigned lane = threadIdx.x % grid.tile, below = threadIdx.x / grid.tile;
  const std::size_t first = blockIdx.x * grid.block_step;
  RowThread thread;
  thread.pack = blockIdx.y * grid.tile + lane;
  thread.is_idle = below >= grid.block_rows || thread.pack >= grid.packs;
  thread.row = first + below;
  thread.end = first + grid.reach < grid.rows ? first + grid.reach : grid.rows;
  thread.step = grid.step;
  return thread;
}

// Calls body(std::integral_constant<int, kUnroll>, row) while at least kUnroll rows are left, then
// body(std::integral_constant<int, 1>, row).
template <int kUnroll, class Body>
__device__ inline void for_rows(const RowThread& thread, const Body& body) {
  if (thread.is_idle) return;
  std::size_t row = thread.row;
  for (; row + (kUnroll - 1) * thread.step < thread.end; row += kUnroll * thread.step) {
    body(std::integral_constant<int, kUnroll>{}, row);
  }
  for (; row < thread.end; row += thread.step) body(std::integral_constant<int, 1>{}, row);
}

// a / b; a 32-bit division if a fits into 32 bits.
__device__ inline std::size_t quotient(std::size_t a, unsigned b) {
  return (a >> 32) == 0 ? static_cast<unsigned>(a) / b : a / b;
}

#endif

}  // namespace dp::cuda
