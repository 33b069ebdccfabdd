// Residual networks for small images, such as CIFAR's of 32 x 32 pixels. They accept any size.
//
// resnet18/34/50/101/152 in CIFAR form: the ImageNet networks of He et al. 2016 (CVPR) with a 3x3
// stem and no first pooling, as in kuangliu/pytorch-cifar. resnet20/32/44/56/110: the same paper's
// section 4.2, with the parameter-free shortcut (option A) or, with a "b" at the end of the name,
// 1x1 convolutions (option B). Parameter names are torch's: "layer1.0.conv1.weight".
#pragma once

#include <cstddef>
#include <vector>

#include "net/graph.hpp"

namespace dp::net {

enum class BlockKind { basic, bottleneck };
enum class ShortcutKind { convolution, padding };

struct ResNetOptions {
  ImageShape image;
  BlockKind block = BlockKind::basic;
  ShortcutKind shortcut = ShortcutKind::convolution;
  std::vector<std::size_t> blocks;  // per stage; stage s > 0 begins with stride 2
  std::vector<std::size_t> widths;  // channels of a stage's 3x3 convolutions
  std::size_t classes = 10;
};

[[nodiscard]] Graph resnet(const ResNetOptions& options);

}  // namespace dp::net
