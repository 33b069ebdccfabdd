// Concatenation along channels, and its inverse.
#pragma once

#include <span>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// y = the channels of all parts, in order. The parts' shapes differ only in their channels. All
// have one data type; channel blocks may differ. Assigns.
void concatenate(Device& device, std::span<const TensorView> parts, const TensorView& y);
// The parts = y's channels. Assigns; a part with null data is skipped.
void split(Device& device, const TensorView& y, std::span<const TensorView> parts);

}  // namespace dp
