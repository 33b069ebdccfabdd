// Inception v4 (Szegedy et al. 2017), without the dropout in front of the last layer. Parameter
// names look like timm's, "features.6.branch2.1.conv.weight", but branches have another order and
// other names, so timm's weights do not fit.
//
// ImageNet form: as in the paper and timm, for 299 x 299 pixels; takes 75 x 75 and more.
//
// Small form: for 32 x 32 pixels; takes 5 x 5 and more. It follows weiaicunzai/pytorch-cifar100:
// the stem has no strides, its layers after the first convolution are padded, the second reduction
// is padded, and average pooling divides by the whole window. (In that program, the parts of some
// concatenations are in another order.)
//
// Both forms have the same parameters.
#pragma once

#include <cstddef>

#include "net/graph.hpp"

namespace dp::net {

enum class InceptionForm { small, imagenet };

struct InceptionOptions {
  ImageShape image;
  InceptionForm form = InceptionForm::small;
  std::size_t classes = 10;
};

[[nodiscard]] Graph inception_v4(const InceptionOptions& options);

}  // namespace dp::net
