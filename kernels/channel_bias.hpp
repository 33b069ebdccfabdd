// The bias of convolutions: adds one number per channel to a tensor, and computes the bias
// gradient. Planned once per shape.
#pragma once

#include <memory>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

class ChannelBias {
 public:
  virtual ~ChannelBias() = default;

  // y += bias (C), in place.
  virtual void add(const TensorView& y, const float* bias) = 0;
  // bias_gradient (C) = the sum of dy over N, H and W, in a fixed order. Overwrites bias_gradient.
  virtual void backward(const TensorView& dy, float* bias_gradient) = 0;
};

// `y` describes both y and dy. Any data type and channel block is allowed.
[[nodiscard]] std::unique_ptr<ChannelBias> make_channel_bias(Device& device, const TensorDesc& y);

}  // namespace dp
