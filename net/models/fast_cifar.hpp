// Small networks that reach 94 % on CIFAR-10 in few steps.
//
// ResNet-9, as in cifar10-fast (Page 2018): four groups of convolution, normalisation and ReLU. Max
// pooling follows in the last three groups. The second and the fourth group end with a residual
// pair of such groups without pooling. Then come max pooling over 4 x 4 pixels, a linear layer
// without bias, and logits x 0.125.
//
// airbench94 (Jordan 2024): a 2x2 convolution whose frozen weights whiten the images' patches
// (net/whitening.hpp) and whose bias is trained in the first three epochs. Then three blocks of two
// 3x3 convolutions, each followed by normalisation without scale and by GELU. In each block, max
// pooling directly follows the first convolution. Then max pooling over 3 x 3 pixels, a linear
// layer without bias, and logits x 1/9. Initially each 3x3 convolution copies its input's channels
// (Init::identity_first).
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
