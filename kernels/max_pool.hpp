// Max pooling.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/pooling.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// y[n, p, q, c] = the largest x[n, h, w, c] of window (p, q). Of equal ones the first counts, row
// by row from the top left; a NaN is larger than any number, and of several the last one counts.
// This is torch's rule. Same data type and channel block on both sides. Assigns.
//
// places: one byte for each value of y, in the same order in memory: where in the window its x was,
// row * window.w + column; so a window has at most 256 pixels. Null: they are not wanted.
void max_pool_forward(Device& device, const TensorView& x, const Pooling& pooling,
                      const TensorView& y, std::uint8_t* places);
// dx = gradient: each dy goes to the one x that was the largest. Assigns.
void max_pool_backward(Device& device, const TensorView& dy, const std::uint8_t* places,
                       const Pooling& pooling, const TensorView& dx);

}  // namespace dp
