// Batch normalisation over N, H, W per channel, fused with two optional operations that follow it
// in a ResNet, the addition of a second tensor and a ReLU:
//
//   y = relu?( gamma * (x - mean) / sqrt(var + epsilon) + beta  [+ addend] )
//
// Ioffe and Szegedy 2015. Statistics and gradients match torch.nn.BatchNorm2d: training normalises
// with the biased variance of the batch, running_var gets the unbiased one, and
//   running = (1 - momentum) * running + momentum * batch.
//
// With a RankGather, statistics are taken over the batches of all ranks: each pass gathers two
// floats per channel from every rank (batch_moments.hpp). The running statistics are then
// bit-identical on all ranks. d_gamma and d_beta are this rank's terms of the sum over ranks.
#pragma once

#include <memory>

#include "kernels/device.hpp"
#include "kernels/rank_gather.hpp"
#include "kernels/tensor.hpp"

namespace dp {

struct BatchNormDesc {
  TensorDesc x;  // y, addend and all gradients have the same description
  bool has_relu = false;
  bool has_addend = false;
  float epsilon = 1e-5f;
  float momentum = 0.1f;
  RankGather* gather = nullptr;  // if set: statistics of all ranks; must outlive the BatchNorm
};

class BatchNorm {
 public:
  virtual ~BatchNorm() = default;

  struct Parameters {
    const float* gamma;   // C; null: 1 for every channel
    const float* beta;    // C
    float* running_mean;  // C, updated by forward_training
    float* running_var;   // C, updated by forward_training
  };
  // Normalises with the batch's own statistics and keeps them for backward. y must not alias x.
  virtual void forward_training(const TensorView& x, const TensorView& addend,
                                const Parameters& parameters, const TensorView& y) = 0;
  // Normalises with the running statistics and leaves them unchanged. y may alias x.
  virtual void forward_inference(const TensorView& x, const TensorView& addend,
                                 const Parameters& parameters, const TensorView& y) = 0;

  struct Gradients {
    TensorView dy, dy2;       // the loss gradient of y is dy + dy2; dy2 may be absent
    TensorView dx;            // output; may alias dy or dy2
    TensorView d_addend;      // output, present exactly if has_addend; may alias dy or dy2, not dx
    float *d_gamma, *d_beta;  // outputs, C each; d_gamma may be null
  };
  // Computes the gradient of the last forward_training, and takes the same x and y. y is read only
  // if there is an addend, because then the ReLU's mask cannot be computed from x.
  virtual void backward(const TensorView& x, const TensorView& y, const Parameters& parameters,
                        const Gradients& gradients) = 0;

  // With a RankGather, a rank that has no images calls these two methods instead of
  // forward_training and backward.
  virtual void forward_without_images(const Parameters& parameters) = 0;
  virtual void backward_without_images() = 0;
};

[[nodiscard]] std::unique_ptr<BatchNorm> make_batch_norm(Device& device, const BatchNormDesc& desc);

}  // namespace dp
