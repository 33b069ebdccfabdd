#include "kernels/sgd.hpp"

#include <algorithm>
#include <array>

#include "kernels/base/error.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

void sgd_update(CpuDevice& device, std::span<float> parameters, std::span<const float> gradients,
                std::span<float> velocity, const SgdStep* step, const double* squares) {
  float* w = parameters.data();
  const float* d = gradients.data();
  float* v = velocity.data();
  const SgdStep s = *step;
  const float scale = squares == nullptr ? 1.0f : clip_scale(s.clip_norm, *squares);
  parallel_pieces(device, parameters.size(), [=](std::size_t, std::size_t i, std::size_t end) {
    if (s.momentum == 0.0f) {
#pragma omp simd
      for (std::size_t j = i; j < end; ++j) {
        w[j] -= s.learning_rate * (d[j] * scale + s.weight_decay * w[j]);
      }
      return;
    }
#pragma omp simd
    for (std::size_t j = i; j < end; ++j) {
      const float g = d[j] * scale + s.weight_decay * w[j];
      v[j] = s.momentum * v[j] + g;
      w[j] -= s.learning_rate * (s.has_nesterov ? g + s.momentum * v[j] : v[j]);
    }
  });
}

void sum_of_squares(CpuDevice& device, std::span<const float> values, double* result) {
  // The array is cut into a fixed number of parts with eight lanes each, and all sums are added in
  // order. The bits therefore do not depend on the number of threads.
  std::array<double, 256> sums{};
  const std::size_t length = (values.size() + sums.size() - 1) / sums.size();
  parallel_for(device, sums.size(), [&](std::size_t part) {
    const std::size_t begin = std::min(part * length, values.size());
    const std::size_t end = std::min(begin + length, values.size());
    std::array<double, 8> lanes{};
    for (std::size_t i = begin; i < end; ++i) {
      const auto value = static_cast<double>(values[i]);
      lanes[(i - begin) % 8] += value * value;
    }
    for (const double lane : lanes) sums[part] += lane;
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  *result = total;
}

}  // namespace dp::cpu
