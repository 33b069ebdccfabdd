// Small networks that reach 94 % on CIFAR-10 in few steps.
//
// ResNet-9 as in cifar10-fast (Page 2018): convolution, normalisation, ReLU four times, with max
// pooling behind the last three, and a residual pair of the same after the second and the fourth;
// max pooling over 4 x 4 pixels; a linear layer without bias; logits x 0.125.
//
// airbench94 (Jordan 2024): a 2x2 convolution whose frozen weights whiten the images' patches
// (net/whitening.hpp) and whose bias is trained in the first three epochs; three blocks of two 3x3
// convolutions with max pooling behind the first, normalisation without scale and GELU; max pooling
// over 3 x 3 pixels; a linear layer without bias; logits x 1/9. At first each 3x3 convolution
// passes its input's channels on (Init::identity_first).
#pragma once

#include <cstddef>

#include "net/graph.hpp"

namespace dp::net {

struct FastCifarOptions {
  ImageShape image;
  std::size_t classes = 10;
};

[[nodiscard]] Graph resnet9(const FastCifarOptions& options);
[[nodiscard]] Graph airbench94(const FastCifarOptions& options);

}  // namespace dp::net
