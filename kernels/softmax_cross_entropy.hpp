// Softmax and cross-entropy together, with label smoothing as torch.nn.CrossEntropyLoss:
// the target puts 1 - smoothing + smoothing / K on the label and smoothing / K elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

struct LossSums {
  double loss = 0;  // sum over the samples, not the mean
  std::int64_t correct =
      0;  // samples whose largest logit is the label's; the lower class wins ties
  std::int64_t samples = 0;

  LossSums& operator+=(const LossSums& more) {
    loss += more.loss;
    correct += more.correct;
    samples += more.samples;
    return *this;
  }
};

// logits: N x K fp32. d_logits (may be absent: evaluation): gradient of sum(loss) / divisor,
// assigned; may alias logits. divisor is the step's global sample count. Labels are in [0, K).
[[nodiscard]] LossSums softmax_cross_entropy(Device& device, const TensorView& logits,
                                             std::span<const std::int32_t> labels, float smoothing,
                                             double divisor, const TensorView& d_logits);

}  // namespace dp
