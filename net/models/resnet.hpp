// Residual networks. They accept images of any size.
//
// resnet18/34/50/101/152 in CIFAR form: the ImageNet networks of He et al. 2016 (CVPR) with a 3x3
// stem and no first pooling, as in kuangliu/pytorch-cifar. resnet20/32/44/56/110: the same paper's
// section 4.2, with the parameter-free shortcut (option A) or, with a "b" at the end of the name,
// 1x1 convolutions (option B). Parameter names are torch's: "layer1.0.conv1.weight".
//
// ImageNet form: a 7x7 stem with stride 2 and max pooling, and torchvision's names, which use
// "downsample" instead of "shortcut" and "fc" instead of "linear". As in torchvision, the stride of
// a bottleneck is in its 3x3 convolution.
//
// PreAct-ResNets (He et al. 2016, ECCV): normalisation and ReLU come before each convolution, and
// nothing comes between a block's sum and the next block. As in kuangliu/pytorch-cifar, the
// shortcut's 1x1 convolution reads the first ReLU's output, and there is no normalisation after the
// last block.
#pragma once

#include <cstddef>
#include <vector>

#include "net/graph.hpp"

namespace dp::net {

enum class BlockKind { basic, bottleneck };
enum class ShortcutKind { convolution, padding };
enum class ResNetForm { cifar, imagenet };

struct ResNetOptions {
  ImageShape image;
  ResNetForm form = ResNetForm::cifar;
  BlockKind block = BlockKind::basic;
  ShortcutKind shortcut = ShortcutKind::convolution;
  std::vector<std::size_t> blocks;  // per stage; stage s > 0 begins with stride 2
  std::vector<std::size_t> widths;  // channels of a stage's 3x3 convolutions
  std::size_t classes = 10;
};

[[nodiscard]] Graph resnet(const ResNetOptions& options);
// CIFAR form and shortcuts with convolutions.
[[nodiscard]] Graph preact_resnet(const ResNetOptions& options);

}  // namespace dp::net
