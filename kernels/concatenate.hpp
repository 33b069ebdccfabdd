// Concatenation along channels, and the way back.
#pragma once

#include <span>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

// y = the channels of the parts one behind the other. Their shapes differ in nothing but channels;
// one data type, any channel blocks. Assigns.
void concatenate(Device& device, std::span<const TensorView> parts, const TensorView& y);
// The parts = y's channels. Assigns; a part with null data is left out.
void split(Device& device, const TensorView& y, std::span<const TensorView> parts);

}  // namespace dp
