// Element-wise operations on tensors with equal descriptions (TensorDesc). All overwrite their
// outputs, which may alias inputs.
#pragma once

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// y = 0 if x < 0, else x; a NaN stays a NaN
void relu_forward(Device& device, const TensorView& x, const TensorView& y);
// dx = dy if y > 0, else 0
void relu_backward(Device& device, const TensorView& y, const TensorView& dy, const TensorView& dx);
// y = a + b
void add(Device& device, const TensorView& a, const TensorView& b, const TensorView& y);
// y = factor * x
void scale(Device& device, const TensorView& x, float factor, const TensorView& y);
// y = x; the data type and channel block may differ
void copy(Device& device, const TensorView& x, const TensorView& y);

}  // namespace dp
