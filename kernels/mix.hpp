// Loops over two arrays of floats, for accumulating gradients over parts of a batch, coupled weight
// decay, averages of weights, and differences of weights. Every device computes the same bits.
#pragma once

#include <span>

#include "kernels/device.hpp"

namespace dp {

// y += factor * x
void add_values(Device& device, std::span<const float> x, std::span<float> y, float factor = 1.0f);
// y += weight * (x - y); with a weight of 1, y = x
void blend_values(Device& device, std::span<const float> x, std::span<float> y, float weight);
// y = weight * (x - y)
void subtract_from_values(Device& device, std::span<const float> x, std::span<float> y,
                          float weight);
void swap_values(Device& device, std::span<float> x, std::span<float> y);

}  // namespace dp
