// VGG16 (Simonyan and Zisserman 2015, configuration D): 13 convolutions of 3x3 with bias, in five
// groups that each end with max pooling; with or without batch normalisation after each
// convolution.
//
// CIFAR form, as in kuangliu/pytorch-cifar: one linear layer. ImageNet form, as in torchvision: two
// linear layers of 4096 with dropout, then the classes. Both take images of any size from 32 x 32:
// the first linear layer has one input for each value that the last pooling leaves. (torchvision
// scales the last pooling's output to 7 x 7 pixels instead. Images of 224 x 224 pixels give that
// size without scaling.)
//
// Parameter names are torchvision's: "features.0.weight", "classifier.6.bias". The CIFAR form's
// linear layer is "classifier".
#pragma once

#include <cstddef>

#include "net/graph.hpp"

namespace dp::net {

enum class VggForm { cifar, imagenet };

struct VggOptions {
  ImageShape image;
  bool has_norm = false;
  VggForm form = VggForm::cifar;
  std::size_t classes = 10;
};

[[nodiscard]] Graph vgg16(const VggOptions& options);

}  // namespace dp::net
