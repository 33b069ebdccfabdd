// The part of a linear layer besides its matrix products: the bias, and the bias gradient.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace dp::cuda {

// y[n][k] += bias[k] for n x k values.
void add_bias(cudaStream_t stream, float* y, const float* bias, std::size_t n, std::size_t k);
// sums[k] = y[0][k] + y[1][k] + ..., added in a fixed tree, so the bits are the same every time.
// Overwrites sums.
void sum_columns(cudaStream_t stream, const float* y, std::size_t n, std::size_t k, float* sums);

}  // namespace dp::cuda
