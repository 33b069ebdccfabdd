#include "kernels/cuda/linear_bias.hpp"

#include "kernels/cuda/launch.cuh"

namespace dp::cuda {

namespace {

// Columns are summed 32 at a time, one per lane, by the 32 warps of a block. A thread has several
// loads in flight.
constexpr unsigned kSumThreads = 1024, kColumns = 32, kRowThreads = kSumThreads / kColumns;
constexpr unsigned kLoads = 4;

__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(float* y, const float* bias, std::size_t count, std::size_t k) {
  for (std::size_t i = first_item(); i < count; i += item_stride()) y[i] += bias[i % k];
}

// Each thread adds up every 32nd row of its column. A tree then adds the 32 sums of a column.
__global__ void __launch_bounds__(kSumThreads)
    sum_columns_kernel(const float* y, std::size_t n, std::size_t k, float* sums) {
  __shared__ float partial[kRowThreads][kColumns];
  const unsigned lane = threadIdx.x % kColumns, warp = threadIdx.x / kColumns;
  for (std::size_t first = static_cast<std::size_t>(blockIdx.x) * kColumns; first < k;
       first += static_cast<std::size_t>(gridDim.x) * kColumns) {
    const std::size_t column = first + lane;
    float parts[kLoads] = {};
    if (column < k) {
      for (std::size_t row = warp; row < n; row += kLoads * kRowThreads) {
        for (unsigned i = 0; i < kLoads; ++i) {
          const std::size_t at = row + i * kRowThreads;
          parts[i] += at < n ? y[at * k + column] : 0.0f;
        }
      }
    }
    __syncthreads();  // the previous iteration's sums have been read
    partial[warp][lane] = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    __syncthreads();
    for (unsigned half = kRowThreads / 2; half > 0; half /= 2) {
      if (warp < half) partial[warp][lane] += partial[warp + half][lane];
      __syncthreads();
    }
    if (warp == 0 && column < k) sums[column] = partial[0][lane];
  }
}

}  // namespace

void add_bias(cudaStream_t stream, float* y, const float* bias, std::size_t n, std::size_t k) {
  if (n * k == 0) return;
  launch(add_bias_kernel, Launch{.blocks = blocks_for(n * k)}, stream, y, bias, n * k, k);
}

void sum_columns(cudaStream_t stream, const float* y, std::size_t n, std::size_t k, float* sums) {
  if (k == 0) return;
  launch(sum_columns_kernel, Launch{.blocks = blocks_for(k, kColumns), .threads = kSumThreads},
         stream, y, n, k, sums);
}

}  // namespace dp::cuda
