// Average pooling.
#pragma once

#include "kernels/device.hpp"
#include "kernels/pooling.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// y[n, p, q, c] = the sum of x[n, h, w, c] over window (p, q), divided as pooling.counts_padding
// specifies. x and y have the same data type and channel block. Overwrites y.
void average_pool_forward(Device& device, const TensorView& x, const Pooling& pooling,
                          const TensorView& y);
// dx = the gradient; windows may overlap. Overwrites dx.
void average_pool_backward(Device& device, const TensorView& dy, const Pooling& pooling,
                           const TensorView& dx);

// y (N x C, fp32, NHWC) = the mean of x over H and W. x may have any data type and channel block.
// Overwrites y.
void global_average_pool_forward(Device& device, const TensorView& x, const TensorView& y);
// dx[n, h, w, c] = dy[n, c] / (H W). Overwrites dx.
void global_average_pool_backward(Device& device, const TensorView& dy, const TensorView& dx);

}  // namespace dp
