// Shared by the kernels of max pooling and average pooling: a walk over pixels, in which each row
// of a block's threads takes one output pixel at a time (rows.cuh).
#pragma once

#include <limits>

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/pooling.hpp"

namespace dp::cuda {

// A pack has `width` channels.
inline RowGrid pool_grid(const CudaDevice& device, const Shape& shape, std::size_t width) {
  const std::size_t rows = shape.n * shape.pixels();
  require(rows <= std::numeric_limits<unsigned>::max(),
          "pooling is limited to fewer than 2^32 pixels");
  return row_grid(rows, shape.c / width, Walk::in_bands, device.multiprocessors() * 8, 1, 1);
}

// Keeps a loop over a window from being unrolled. Unrolled loops would need a stack.
#ifdef __CUDACC__
#define DP_UNROLL_1 _Pragma("unroll 1")
#else
#define DP_UNROLL_1
#endif

#if defined(__CUDACC__) || defined(DP_CUDA_ON_CPU)

struct Pixel {
  unsigned n, row, column;
};

// Calls body(row) for the thread's rows, one by one.
template <class Body>
__device__ inline void for_each_row(const RowThread& thread, const Body& body) {
  if (thread.is_idle) return;
  for (std::size_t row = thread.row; row < thread.end; row += thread.step) body(row);
}

// Pixel `number` of images with this height and width, counted row by row and image by image.
__device__ inline Pixel pixel_of(std::size_t number, unsigned height, unsigned width) {
  const unsigned i = static_cast<unsigned>(number), line = i / width, n = line / height;
  return {n, line - n * height, i - line * width};
}

#endif

}  // namespace dp::cuda
