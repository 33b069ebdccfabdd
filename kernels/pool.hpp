// Average pooling.
#pragma once

#include "kernels/device.hpp"
#include "kernels/pooling.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// y[n, p, q, c] = the sum of x[n, h, w, c] over window (p, q), divided as pooling.counts_padding
// specifies. Same data type and channel block on both sides. Assigns.
void average_pool_forward(Device& device, const TensorView& x, const Pooling& pooling,
                          const TensorView& y);
// dx = gradient; windows may overlap. Assigns.
void average_pool_backward(Device& device, const TensorView& dy, const Pooling& pooling,
                           const TensorView& dx);

// y (N x C, fp32, NHWC) = mean of x over H and W. x: any data type and channel block. Assigns.
void global_average_pool_forward(Device& device, const TensorView& x, const TensorView& y);
// dx[n, h, w, c] = dy[n, c] / (H W). Assigns.
void global_average_pool_backward(Device& device, const TensorView& dy, const TensorView& dx);

}  // namespace dp
