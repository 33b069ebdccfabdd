#include "app/options/recipes.hpp"

#include <algorithm>

namespace dp {

const std::vector<Recipe>& recipe_list() {
  static const std::vector<Recipe> list = {
      {"cifar-resnet",
       "He et al. 2016, section 4.2: ResNets on CIFAR-10, 64,000 steps of 128 images, the rate "
       "divided by 10 after one half and three quarters of the run",
       {{"model", "resnet20"},
        {"epochs", "164"},
        {"global-batch", "128"},
        {"lr", "0.1"},
        {"weight-decay", "0.0001"},
        {"lr-schedule", "step:milestones=82/123"}}},
      {"cifar-cosine",
       "the public CIFAR-10 table of kuangliu's pytorch-cifar: 200 epochs of 128 images, the rate "
       "falls along a cosine, epoch by epoch; the same for its other models by --model",
       {{"model", "resnet18"},
        {"epochs", "200"},
        {"global-batch", "128"},
        {"lr", "0.1"},
        {"weight-decay", "0.0005"},
        {"lr-schedule", "cosine:by=epoch"}}},
      {"cifar100-step",
       "the public CIFAR-100 table of weiaicunzai's pytorch-cifar100 (with --dataset cifar100): "
       "200 epochs of 128 images, the rate divided by 5 after epochs 60, 120 and 160, a warm-up of "
       "one epoch; the same for its other models by --model",
       {{"model", "resnet18"},
        {"epochs", "200"},
        {"global-batch", "128"},
        {"lr", "0.1"},
        {"nesterov", "on"},
        {"weight-decay", "0.0005"},
        {"lr-schedule", "step:milestones=60/120/160,gamma=0.2"},
        {"warmup-epochs", "1"}}},
      {"cifar-fast",
       "ResNet-9 of DAWNBench (Page 2018): 24 epochs of 512 images, the rate rises for 5 epochs to "
       "0.4 and falls to 0; crops of mirrored padding, cutout of 8 x 8 pixels",
       {{"model", "resnet9"},
        {"epochs", "24"},
        {"global-batch", "512"},
        {"lr", "0.4"},
        {"nesterov", "on"},
        {"lr-schedule", "triangular:start=0,peak=0.2083,end=0"},
        {"augment", "on:fill=reflect,cutout=8"}}},
      {"airbench94",
       "airbench94 (Jordan 2024) in whole epochs: SGD with the paper's learning rate of 11.5, "
       "which is 1.5 in PyTorch's convention; 64 times that rate for biases of BatchNorm, "
       "Lookahead, shifts by 2 pixels, alternating flip",
       {{"model", "airbench94"},
        {"epochs", "10"},
        {"global-batch", "1024"},
        {"lr", "1.5"},
        {"momentum", "0.85"},
        {"nesterov", "on"},
        {"weight-decay", "0.00133"},
        {"lr-factors", "bn=64"},
        {"decay-factors", "bn=0.015625"},
        {"label-smoothing", "0.2"},
        {"lookahead", "5:ramp"},
        {"lr-schedule", "triangular"},
        {"augment", "on:padding=2,fill=reflect,flip=alternate"},
        {"test-augment", "shift"}}},
      {"imagenet-resnet50",
       "Goyal et al. 2017: ResNet-50 on ImageNet, 90 epochs of 256 images, the rate divided by 10 "
       "after epochs 30, 60 and 80; for larger batches give --global-batch and a --lr of 0.1 for "
       "each 256 images",
       {{"model", "resnet50-imagenet"},
        {"epochs", "90"},
        {"global-batch", "256"},
        {"lr", "0.1"},
        {"weight-decay", "0.0001"},
        {"lr-schedule", "step:milestones=30/60/80"},
        {"warmup-epochs", "5"}}},
      {"lowband-resnet50",
       "the low-bandwidth paper's exchange with ResNet-50: 8 bits a value in blocks of 2,048, and "
       "batches that grow from 128 images as the loss falls; the rest is dptrain's",
       {{"model", "resnet50"},
        {"global-batch", "128"},
        {"batch-schedule", "dynamic:max=1024"},
        {"compress", "q8"}}},
      {"lowband-vgg16",
       "the same with VGG16",
       {{"model", "vgg16-bn"},
        {"global-batch", "128"},
        {"batch-schedule", "dynamic:max=1024"},
        {"compress", "q8"}}},
      {"lowband-inception-v4",
       "the same with Inception v4",
       {{"model", "inception-v4"},
        {"global-batch", "128"},
        {"batch-schedule", "dynamic:max=1024"},
        {"compress", "q8"}}},
  };
  return list;
}

std::string Recipe::value_of(const std::string& option) const {
  for (const auto& [other, value] : options) {
    if (other == option) return value;
  }
  return {};
}

std::string Recipe::words() const {
  std::string words;
  for (const auto& [option, value] : options) {
    words += (words.empty() ? "--" : " --") + option + " " + value;
  }
  return words;
}

std::vector<Recipe> recipes_for(const std::vector<std::string>& models) {
  std::vector<Recipe> offered;
  for (const Recipe& recipe : recipe_list()) {
    const bool has_model =
        std::find(models.begin(), models.end(), recipe.value_of("model")) != models.end();
    if (models.empty() || has_model) offered.push_back(recipe);
  }
  return offered;
}

const Recipe* find_recipe(const std::string& name) {
  for (const Recipe& recipe : recipe_list()) {
    if (recipe.name == name) return &recipe;
  }
  return nullptr;
}

}  // namespace dp
