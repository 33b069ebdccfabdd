// Weights of a convolution that whitens its input's patches (Page 2019; Jordan 2024): its outputs,
// over the training images, are uncorrelated and have variance 1.
//
// With the patches of R x S pixels and C channels as vectors of R S C numbers, the rows of the
// weights are the eigenvectors of the patches' second moments, each divided by
// sqrt(eigenvalue + epsilon), the largest eigenvalue first; then the same with the other sign.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "kernels/base/pixels.hpp"
#include "net/parameters.hpp"

namespace dp::net {

struct WhiteningImages {
  ImageShape shape;
  std::size_t count;
  // Assigns image `index`, normalised as in training, in NHWC order.
  std::function<void(std::size_t index, std::span<float> nhwc)> read;
  double epsilon = 5e-4;
};

// `weights` has 2 R S C output channels. The values in torch's order. An eigenvector's sign is the
// one with which its largest component is positive.
[[nodiscard]] std::vector<float> whitening_weights(const Parameter& weights,
                                                   const WhiteningImages& images);

}  // namespace dp::net
