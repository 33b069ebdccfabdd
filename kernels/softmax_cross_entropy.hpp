// Softmax and cross-entropy together, with label smoothing as in torch.nn.CrossEntropyLoss: the
// target puts 1 - smoothing + smoothing / K on the label and smoothing / K elsewhere.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

struct LossSums {
  double loss = 0;           // sum over the samples, not the mean
  std::int64_t correct = 0;  // samples whose label has the largest logit; the lower class wins ties
  std::int64_t samples = 0;

  LossSums& operator+=(const LossSums& more) {
    loss += more.loss;
    correct += more.correct;
    samples += more.samples;
    return *this;
  }
};

// logits: N x K fp32. labels: N, in [0, K), in device memory. d_logits: output, the gradient of
// sum(loss) / divisor; may alias logits; absent in evaluation. divisor: the number of samples of
// all ranks in the training step. sums: output, in memory from Device::allocate_host; the host may
// read it once the operation has run.
void softmax_cross_entropy(Device& device, const TensorView& logits, const std::int32_t* labels,
                           float smoothing, double divisor, const TensorView& d_logits,
                           LossSums* sums);

}  // namespace dp
