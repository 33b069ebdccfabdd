// A plan for a two-dimensional convolution without bias. It is made once per shape and run in every
// training step.
//
// x: N, H, W, C. y: N, P, Q, K with P = (H + 2 padding.h - R) / stride + 1, Q likewise. weights:
// KRSC fp32 on every device (K output channels, R x S kernel, C input channels); the plan reorders
// them into a library's own layout. This is a cross-correlation, as in every deep-learning library.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/device.hpp"
#include "kernels/extent.hpp"
#include "kernels/tensor.hpp"

namespace dp {

struct Conv2dDesc {
  TensorDesc x, y;
  Extent kernel = 3;  // R x S
  std::size_t stride = 1;
  Extent padding = 1;
  bool is_training = true;            // false: forward only
  bool needs_input_gradient = true;   // false for the first layer: no backward_data
  bool needs_weight_gradient = true;  // false if the weights are not trained: no backward_weights

  [[nodiscard]] std::size_t weight_elements() const {
    return y.shape.c * kernel.area() * x.shape.c;
  }
};

class Conv2d {
 public:
  virtual ~Conv2d() = default;
  // y = x * weights. Overwrites y.
  virtual void forward(const TensorView& x, const float* weights, const TensorView& y) = 0;
  // dx = the gradient of the loss with respect to x. Overwrites dx.
  virtual void backward_data(const TensorView& dy, const float* weights, const TensorView& dx) = 0;
  // weight_gradient (KRSC fp32) = the gradient with respect to the weights. Overwrites
  // weight_gradient.
  virtual void backward_weights(const TensorView& x, const TensorView& dy,
                                float* weight_gradient) = 0;
  // The chosen algorithms: "forward winograd, data winograd, weights direct".
  [[nodiscard]] virtual std::string algorithms() const = 0;
};

// The output's shape. Throws Error(internal) if the kernel does not fit.
[[nodiscard]] Shape conv2d_output(const Shape& x, std::size_t out_channels, Extent kernel,
                                  std::size_t stride, Extent padding);

[[nodiscard]] std::unique_ptr<Conv2d> make_conv2d(Device& device, const Conv2dDesc& desc);

}  // namespace dp
