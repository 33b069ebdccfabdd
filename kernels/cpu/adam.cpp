#include "kernels/adam.hpp"

#include <cmath>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/twins.hpp"
#include "kernels/sgd.hpp"

namespace dp::cpu {

void adam_update(CpuDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> mean, std::span<float> square, const AdamStep* step,
                 const double* squares) {
  float* w = parameters.data();
  const float* d = gradients.data();
  float* m = mean.data();
  float* v = square.data();
  const AdamStep s = *step;
  const float scale = squares == nullptr ? 1.0f : clip_scale(s.clip_norm, *squares);
  parallel_pieces(device, parameters.size(), [=](std::size_t, std::size_t i, std::size_t end) {
#pragma omp simd
    for (std::size_t j = i; j < end; ++j) {
      const float kept = s.keep * w[j];
      const float g = d[j] * scale + s.decay * kept;
      m[j] += s.one_minus_beta1 * (g - m[j]);
      v[j] = s.beta2 * v[j] + s.one_minus_beta2 * (g * g);
      const float root = std::sqrt(v[j]) / s.square_root_end + s.epsilon;
      w[j] = kept - s.size * (m[j] / root);
    }
  });
}

}  // namespace dp::cpu
