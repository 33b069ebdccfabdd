// The parameter-free shortcut, option A of ResNet (He et al. 2016, section 3.3): takes every
// stride-th pixel and fills the new channels with zeros.
//
// y[n, p, q, k] = x[n, p*stride, q*stride, k - first] for first <= k < first + C, else 0, where
// `first` = (K - C) / 2: the zeros are split evenly before and after, as in the common PyTorch
// implementation (akamaster's LambdaLayer pads out_channels/4 on both sides).
#pragma once

#include <cstddef>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace dp {

void pad_shortcut_forward(Device& device, const TensorView& x, std::size_t stride,
                          const TensorView& y);
// Overwrites dx; skipped pixels get 0.
void pad_shortcut_backward(Device& device, const TensorView& dy, std::size_t stride,
                           const TensorView& dx);

}  // namespace dp
