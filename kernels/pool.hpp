// Average pooling.
#pragma once

#include <cstddef>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// y[n, p, q, c] = mean of the window x[n, p*stride .. +window, q*stride .. +window, c]; no padding;
// y's height is (H - window) / stride + 1. Same data type and channel block on both sides. Assigns.
void average_pool_forward(Device& device, const TensorView& x, std::size_t window,
                          std::size_t stride, const TensorView& y);
// dx = gradient; windows may overlap. Assigns.
void average_pool_backward(Device& device, const TensorView& dy, std::size_t window,
                           std::size_t stride, const TensorView& dx);

// y (N x C, fp32, NHWC) = mean of x over H and W. x in any type and block. Assigns.
void global_average_pool_forward(Device& device, const TensorView& x, const TensorView& y);
// dx[n, h, w, c] = dy[n, c] / (H W). Assigns.
void global_average_pool_backward(Device& device, const TensorView& dy, const TensorView& dx);

}  // namespace dp
