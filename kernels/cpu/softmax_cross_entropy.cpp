#include "kernels/softmax_cross_entropy.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.hpp"
#include "kernels/cpu/device.hpp"
#include "kernels/cpu/twins.hpp"

namespace dp::cpu {

// A training step has only a few thousand exponentials, so one thread computes them, in double.
void softmax_cross_entropy(CpuDevice&, const TensorView& logits, const std::int32_t* labels,
                           float smoothing, double divisor, const TensorView& d_logits,
                           LossSums* result) {
  const std::size_t samples = logits.desc.shape.n, classes = logits.desc.shape.c;
  const double spread = static_cast<double>(smoothing) / static_cast<double>(classes);
  LossSums sums{.samples = static_cast<std::int64_t>(samples)};
  for (std::size_t n = 0; n < samples; ++n) {
    const float* row = logits.as<const float>() + n * classes;
    const auto label = static_cast<std::size_t>(labels[n]);
    DP_ASSERT(label < classes, "label {} of {} classes", label, classes);
    const float largest = *std::max_element(row, row + classes);
    double total = 0, sum = 0;
    for (std::size_t k = 0; k < classes; ++k) {
      total += std::exp(static_cast<double>(row[k]) - static_cast<double>(largest));
      sum += static_cast<double>(row[k]);
    }
    const double log_total = std::log(total) + static_cast<double>(largest);
    // sum over k of target[k] * (log_total - logit[k])
    sums.loss += log_total -
                 (1.0 - static_cast<double>(smoothing)) * static_cast<double>(row[label]) -
                 spread * sum;
    sums.correct += std::max_element(row, row + classes) == row + label ? 1 : 0;
    if (!d_logits) continue;
    float* gradient = d_logits.as<float>() + n * classes;
    for (std::size_t k = 0; k < classes; ++k) {
      const double target = spread + (k == label ? 1.0 - static_cast<double>(smoothing) : 0.0);
      const double probability = std::exp(static_cast<double>(row[k]) - log_total);
      gradient[k] = static_cast<float>((probability - target) / divisor);
    }
  }
  *result = sums;
}

}  // namespace dp::cpu
