#include "net/models/registry.hpp"

#include <algorithm>

#include "kernels/base/setting_error.hpp"
#include "net/models/fast_cifar.hpp"
#include "net/models/inception.hpp"
#include "net/models/resnet.hpp"
#include "net/models/vgg.hpp"

namespace dp::net {

namespace {

using Blocks = std::vector<std::size_t>;

ResNetOptions four_stages(const ModelInput& input, BlockKind block, Blocks blocks) {
  return {.image = input.image,
          .block = block,
          .blocks = std::move(blocks),
          .widths = {64, 128, 256, 512},
          .classes = input.classes};
}

Graph cifar_form(const ModelInput& input, BlockKind block, Blocks blocks) {
  return resnet(four_stages(input, block, std::move(blocks)));
}

Graph imagenet_form(const ModelInput& input, BlockKind block, Blocks blocks) {
  ResNetOptions options = four_stages(input, block, std::move(blocks));
  options.form = ResNetForm::imagenet;
  return resnet(options);
}

Graph preact(const ModelInput& input, BlockKind block, Blocks blocks) {
  return preact_resnet(four_stages(input, block, std::move(blocks)));
}

// He et al. 2016, section 4.2: three stages of n blocks, depth 6 n + 2.
Graph cifar_style(const ModelInput& input, ShortcutKind shortcut, std::size_t n) {
  return resnet({.image = input.image,
                 .shortcut = shortcut,
                 .blocks = {n, n, n},
                 .widths = {16, 32, 64},
                 .classes = input.classes});
}

Graph vgg(const ModelInput& input, bool has_norm, VggForm form) {
  return vgg16(
      {.image = input.image, .has_norm = has_norm, .form = form, .classes = input.classes});
}

struct Row {
  const char* name;
  Graph (*make)(const ModelInput& input);
  std::size_t least_pixels = 1;  // height and width of images that it can take
};

constexpr auto kBasic = BlockKind::basic, kBottleneck = BlockKind::bottleneck;
constexpr auto kA = ShortcutKind::padding, kB = ShortcutKind::convolution;

const Row kModels[] = {
    {"resnet18",
     [](const ModelInput& input) {
       return cifar_form(input, kBasic, {2, 2, 2, 2});
     }},
    {"resnet34",
     [](const ModelInput& input) {
       return cifar_form(input, kBasic, {3, 4, 6, 3});
     }},
    {"resnet50",
     [](const ModelInput& input) {
       return cifar_form(input, kBottleneck, {3, 4, 6, 3});
     }},
    {"resnet101",
     [](const ModelInput& input) {
       return cifar_form(input, kBottleneck, {3, 4, 23, 3});
     }},
    {"resnet152",
     [](const ModelInput& input) {
       return cifar_form(input, kBottleneck, {3, 8, 36, 3});
     }},
    {"resnet20", [](const ModelInput& input) { return cifar_style(input, kA, 3); }},
    {"resnet32", [](const ModelInput& input) { return cifar_style(input, kA, 5); }},
    {"resnet44", [](const ModelInput& input) { return cifar_style(input, kA, 7); }},
    {"resnet56", [](const ModelInput& input) { return cifar_style(input, kA, 9); }},
    {"resnet110", [](const ModelInput& input) { return cifar_style(input, kA, 18); }},
    {"resnet20b", [](const ModelInput& input) { return cifar_style(input, kB, 3); }},
    {"resnet32b", [](const ModelInput& input) { return cifar_style(input, kB, 5); }},
    {"resnet44b", [](const ModelInput& input) { return cifar_style(input, kB, 7); }},
    {"resnet56b", [](const ModelInput& input) { return cifar_style(input, kB, 9); }},
    {"resnet110b", [](const ModelInput& input) { return cifar_style(input, kB, 18); }},
    {"resnet18-imagenet",
     [](const ModelInput& input) {
       return imagenet_form(input, kBasic, {2, 2, 2, 2});
     }},
    {"resnet34-imagenet",
     [](const ModelInput& input) {
       return imagenet_form(input, kBasic, {3, 4, 6, 3});
     }},
    {"resnet50-imagenet",
     [](const ModelInput& input) {
       return imagenet_form(input, kBottleneck, {3, 4, 6, 3});
     }},
    {"resnet101-imagenet",
     [](const ModelInput& input) {
       return imagenet_form(input, kBottleneck, {3, 4, 23, 3});
     }},
    {"resnet152-imagenet",
     [](const ModelInput& input) {
       return imagenet_form(input, kBottleneck, {3, 8, 36, 3});
     }},
    {"preact-resnet18",
     [](const ModelInput& input) {
       return preact(input, kBasic, {2, 2, 2, 2});
     }},
    {"preact-resnet34",
     [](const ModelInput& input) {
       return preact(input, kBasic, {3, 4, 6, 3});
     }},
    {"preact-resnet50",
     [](const ModelInput& input) {
       return preact(input, kBottleneck, {3, 4, 6, 3});
     }},
    {"preact-resnet101",
     [](const ModelInput& input) {
       return preact(input, kBottleneck, {3, 4, 23, 3});
     }},
    {"preact-resnet152",
     [](const ModelInput& input) {
       return preact(input, kBottleneck, {3, 8, 36, 3});
     }},
    {"inception-v4",
     [](const ModelInput& input) {
       return inception_v4({.image = input.image, .classes = input.classes});
     },
     5},
    {"inception-v4-imagenet",
     [](const ModelInput& input) {
       return inception_v4(
           {.image = input.image, .form = InceptionForm::imagenet, .classes = input.classes});
     },
     75},
    {"vgg16", [](const ModelInput& input) { return vgg(input, false, VggForm::cifar); }, 32},
    {"vgg16-bn", [](const ModelInput& input) { return vgg(input, true, VggForm::cifar); }, 32},
    {"vgg16-imagenet", [](const ModelInput& input) { return vgg(input, false, VggForm::imagenet); },
     32},
    {"vgg16-bn-imagenet",
     [](const ModelInput& input) { return vgg(input, true, VggForm::imagenet); }, 32},
    {"resnet9",
     [](const ModelInput& input) {
       return resnet9({.image = input.image, .classes = input.classes});
     },
     32},
    {"airbench94",
     [](const ModelInput& input) {
       return airbench94({.image = input.image, .classes = input.classes});
     },
     25},
};

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Row& row : kModels) names.emplace_back(row.name);
  return names;
}

Graph make_model(const std::string& name, const ModelInput& input) {
  std::string known;
  for (const Row& row : kModels) {
    if (name == row.name) {
      const ImageShape& image = input.image;
      if (std::min(image.height, image.width) < row.least_pixels) {
        throw SettingError(
            Setting{"model"}, name,
            fmt::format("this network needs images of at least {0}x{0} pixels; these have {1}x{2}",
                        row.least_pixels, image.height, image.width));
      }
      return row.make(input);
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw SettingError(Setting{"model"}, name, "unknown model; known: " + known);
}

}  // namespace dp::net
