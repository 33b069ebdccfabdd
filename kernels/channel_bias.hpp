// A number for each channel that is added to a tensor, and its gradient: the bias of convolutions,
// as a plan.
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
  // bias_gradient (C) = sum of dy over N, H and W, in a fixed order. Assigns.
  virtual void backward(const TensorView& dy, float* bias_gradient) = 0;
};

// y and dy are of this description: any type and channel block.
[[nodiscard]] std::unique_ptr<ChannelBias> make_channel_bias(Device& device, const TensorDesc& y);

}  // namespace dp
