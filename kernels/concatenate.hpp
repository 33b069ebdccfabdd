// Concatenation along channels, and its inverse.
#pragma once

#include <span>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// y = the channels of all parts, in order. The parts' shapes differ only in their channels. All
// tensors have the same data type; channel blocks may differ. Overwrites y.
void concatenate(Device& device, std::span<const TensorView> parts, const TensorView& y);
// The inverse: overwrites each part with its channels of y. A part with null data is skipped.
void split(Device& device, const TensorView& y, std::span<const TensorView> parts);

}  // namespace dp
