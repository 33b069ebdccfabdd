// Fully connected layer: y (N x K) = x (N x C) * transpose(weights) + bias, all fp32. weights: K x
// C, row-major, as in torch.nn.Linear; x, y: NHWC with H = W = 1.
#pragma once

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// Overwrites y. bias may be null.
void linear_forward(Device& device, const TensorView& x, const float* weights, const float* bias,
                    const TensorView& y);
// dx = dy * weights. Overwrites dx.
void linear_backward_data(Device& device, const TensorView& dy, const float* weights,
                          const TensorView& dx);
// weight_gradient = transpose(dy) * x; bias_gradient (may be null) = the column sums of dy.
// Overwrites both.
void linear_backward_weights(Device& device, const TensorView& x, const TensorView& dy,
                             float* weight_gradient, float* bias_gradient);

}  // namespace dp
