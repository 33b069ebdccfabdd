// Max pooling.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/pooling.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// y[n, p, q, c] = the largest x[n, h, w, c] in window (p, q). The first of equal values wins, row
// by row from the top left. A NaN is larger than any number; of several NaNs the last one wins.
// This is torch's rule. x and y have the same data type and channel block. Overwrites y.
//
// places: for each value of y, in memory order, one byte with the position of its x in the window,
// row * window.w + column. A window therefore has at most 256 pixels. If `places` is null,
// positions are not recorded.
void max_pool_forward(Device& device, const TensorView& x, const Pooling& pooling,
                      const TensorView& y, std::uint8_t* places);
// dx = the gradient: each dy goes to the x that was the largest in its window. Overwrites dx.
void max_pool_backward(Device& device, const TensorView& dy, const std::uint8_t* places,
                       const Pooling& pooling, const TensorView& dx);

}  // namespace dp
