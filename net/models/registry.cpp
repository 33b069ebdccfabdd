#include "net/models/registry.hpp"

#include <algorithm>
#include <functional>

#include "kernels/base/setting_error.hpp"
#include "net/models/fast_cifar.hpp"
#include "net/models/inception.hpp"
#include "net/models/resnet.hpp"
#include "net/models/vgg.hpp"

namespace dp::net {

namespace {

using Blocks = std::vector<std::size_t>;

using Make = std::function<Graph(const ModelInput& input)>;

ResNetOptions four_stages(const ModelInput& input, BlockKind block, const Blocks& blocks) {
  return {.image = input.image,
          .block = block,
          .blocks = blocks,
          .widths = {64, 128, 256, 512},
          .classes = input.classes};
}

Make cifar_form(BlockKind block, const Blocks& blocks) {
  return [=](const ModelInput& input) { return resnet(four_stages(input, block, blocks)); };
}

Make imagenet_form(BlockKind block, const Blocks& blocks) {
  return [=](const ModelInput& input) {
    ResNetOptions options = four_stages(input, block, blocks);
    options.form = ResNetForm::imagenet;
    return resnet(options);
  };
}

Make preact(BlockKind block, const Blocks& blocks) {
  return [=](const ModelInput& input) { return preact_resnet(four_stages(input, block, blocks)); };
}

// He et al. 2016, section 4.2: three stages of n blocks, depth 6 n + 2.
Make cifar_style(ShortcutKind shortcut, std::size_t n) {
  return [=](const ModelInput& input) {
    return resnet({.image = input.image,
                   .shortcut = shortcut,
                   .blocks = {n, n, n},
                   .widths = {16, 32, 64},
                   .classes = input.classes});
  };
}

Make inception(InceptionForm form) {
  return [=](const ModelInput& input) {
    return inception_v4({.image = input.image, .form = form, .classes = input.classes});
  };
}

Make vgg(bool has_norm, VggForm form) {
  return [=](const ModelInput& input) {
    return vgg16(
        {.image = input.image, .has_norm = has_norm, .form = form, .classes = input.classes});
  };
}

Make fast(Graph (*model)(const FastCifarOptions& options)) {
  return [=](const ModelInput& input) {
    return model({.image = input.image, .classes = input.classes});
  };
}

struct Row {
  const char* name;
  Make make;
  std::size_t least_pixels = 1;  // the smallest height and width that the network takes
};

constexpr auto kBasic = BlockKind::basic, kBottleneck = BlockKind::bottleneck;
constexpr auto kA = ShortcutKind::padding, kB = ShortcutKind::convolution;

const Row kModels[] = {
    {"resnet18", cifar_form(kBasic, {2, 2, 2, 2})},
    {"resnet34", cifar_form(kBasic, {3, 4, 6, 3})},
    {"resnet50", cifar_form(kBottleneck, {3, 4, 6, 3})},
    {"resnet101", cifar_form(kBottleneck, {3, 4, 23, 3})},
    {"resnet152", cifar_form(kBottleneck, {3, 8, 36, 3})},
    {"resnet20", cifar_style(kA, 3)},
    {"resnet32", cifar_style(kA, 5)},
    {"resnet44", cifar_style(kA, 7)},
    {"resnet56", cifar_style(kA, 9)},
    {"resnet110", cifar_style(kA, 18)},
    {"resnet20b", cifar_style(kB, 3)},
    {"resnet32b", cifar_style(kB, 5)},
    {"resnet44b", cifar_style(kB, 7)},
    {"resnet56b", cifar_style(kB, 9)},
    {"resnet110b", cifar_style(kB, 18)},
    {"resnet18-imagenet", imagenet_form(kBasic, {2, 2, 2, 2})},
    {"resnet34-imagenet", imagenet_form(kBasic, {3, 4, 6, 3})},
    {"resnet50-imagenet", imagenet_form(kBottleneck, {3, 4, 6, 3})},
    {"resnet101-imagenet", imagenet_form(kBottleneck, {3, 4, 23, 3})},
    {"resnet152-imagenet", imagenet_form(kBottleneck, {3, 8, 36, 3})},
    {"preact-resnet18", preact(kBasic, {2, 2, 2, 2})},
    {"preact-resnet34", preact(kBasic, {3, 4, 6, 3})},
    {"preact-resnet50", preact(kBottleneck, {3, 4, 6, 3})},
    {"preact-resnet101", preact(kBottleneck, {3, 4, 23, 3})},
    {"preact-resnet152", preact(kBottleneck, {3, 8, 36, 3})},
    {"inception-v4", inception(InceptionForm::small), 5},
    {"inception-v4-imagenet", inception(InceptionForm::imagenet), 75},
    {"vgg16", vgg(false, VggForm::cifar), 32},
    {"vgg16-bn", vgg(true, VggForm::cifar), 32},
    {"vgg16-imagenet", vgg(false, VggForm::imagenet), 32},
    {"vgg16-bn-imagenet", vgg(true, VggForm::imagenet), 32},
    {"resnet9", fast(resnet9), 32},
    {"airbench94", fast(airbench94), 25},
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
