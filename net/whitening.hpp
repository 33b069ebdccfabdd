// Weights of a convolution that whitens its input's patches (Page 2019; Jordan 2024): over the
// training images, its outputs are uncorrelated and have variance 1.
//
// Each patch of R x S pixels and C channels is a vector of R S C numbers. The rows of the weights
// are the eigenvectors of the patches' second moments, each divided by sqrt(eigenvalue + epsilon),
// the largest eigenvalue first. Then the same rows follow with the opposite sign.
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

// `weights` has 2 R S C output channels. Returns the values in torch's order. The sign of an
// eigenvector is chosen so that its largest component is positive.
[[nodiscard]] std::vector<float> whitening_weights(const Parameter& weights,
                                                   const WhiteningImages& images);

}  // namespace dp::net
