#include "kernels/mix.hpp"

#include <algorithm>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

void add_values(CpuDevice& device, std::span<const float> x, std::span<float> y, float factor) {
  const float* from = x.data();
  float* to = y.data();
  parallel_pieces(device, y.size(), [=](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
    for (std::size_t j = i; j < end; ++j) to[j] += factor * from[j];
  });
}

void blend_values(CpuDevice& device, std::span<const float> x, std::span<float> y, float weight) {
  const float* from = x.data();
  float* to = y.data();
  parallel_pieces(device, y.size(), [=](std::size_t, std::size_t i, std::size_t end) {
    if (weight == 1.0f) {
      std::copy(from + i, from + end, to + i);
      return;
    }
#pragma omp simd
    for (std::size_t j = i; j < end; ++j) to[j] += weight * (from[j] - to[j]);
  });
}

void subtract_from_values(CpuDevice& device, std::span<const float> x, std::span<float> y,
                          float weight) {
  const float* from = x.data();
  float* to = y.data();
  parallel_pieces(device, y.size(), [=](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
    for (std::size_t j = i; j < end; ++j) to[j] = weight * (from[j] - to[j]);
  });
}

void swap_values(CpuDevice& device, std::span<float> x, std::span<float> y) {
  float *a = x.data(), *b = y.data();
  parallel_pieces(device, y.size(), [=](std::size_t, std::size_t i, std::size_t end) {
    std::swap_ranges(a + i, a + end, b + i);
  });
}

}  // namespace dp::cpu
