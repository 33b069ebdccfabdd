#include "kernels/lars.hpp"

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

void lars_update(CpuDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> velocity, const LarsStep* step, const LarsNorms* norms,
                 const double* squares) {
  float* w = parameters.data();
  const float* d = gradients.data();
  float* v = velocity.data();
  const LarsStep s = *step;
  const float scale = squares == nullptr ? 1.0f : clip_scale(s.clip_norm, *squares);
  const float ratio = lars_ratio(s, *norms, scale);
  parallel_pieces(device, parameters.size(), [=](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
    for (std::size_t j = i; j < end; ++j) {
      const float g = ratio * (d[j] * scale + s.weight_decay * w[j]);
      v[j] = s.momentum * v[j] + g;
      w[j] -= s.learning_rate * v[j];
    }
  });
}

}  // namespace dp::cpu
