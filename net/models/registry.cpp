#include "net/models/registry.hpp"

#include "kernels/base/error.hpp"
#include "net/models/resnet.hpp"

namespace dp::net {

namespace {

using Blocks = std::vector<std::size_t>;

Graph imagenet_style(BlockKind block, Blocks blocks, std::size_t classes) {
  return resnet({.block = block,
                 .blocks = std::move(blocks),
                 .widths = {64, 128, 256, 512},
                 .classes = classes});
}

// He et al. 2016, section 4.2: three stages of n blocks, depth 6 n + 2.
Graph cifar_style(ShortcutKind shortcut, std::size_t n, std::size_t classes) {
  return resnet(
      {.shortcut = shortcut, .blocks = {n, n, n}, .widths = {16, 32, 64}, .classes = classes});
}

struct Row {
  const char* name;
  Graph (*make)(std::size_t classes);
};

constexpr auto kBasic = BlockKind::basic, kBottleneck = BlockKind::bottleneck;
constexpr auto kA = ShortcutKind::padding, kB = ShortcutKind::convolution;

const Row kModels[] = {
    {"resnet18",
     [](std::size_t k) {
       return imagenet_style(kBasic, {2, 2, 2, 2}, k);
     }},
    {"resnet34",
     [](std::size_t k) {
       return imagenet_style(kBasic, {3, 4, 6, 3}, k);
     }},
    {"resnet50",
     [](std::size_t k) {
       return imagenet_style(kBottleneck, {3, 4, 6, 3}, k);
     }},
    {"resnet101",
     [](std::size_t k) {
       return imagenet_style(kBottleneck, {3, 4, 23, 3}, k);
     }},
    {"resnet152",
     [](std::size_t k) {
       return imagenet_style(kBottleneck, {3, 8, 36, 3}, k);
     }},
    {"resnet20", [](std::size_t k) { return cifar_style(kA, 3, k); }},
    {"resnet32", [](std::size_t k) { return cifar_style(kA, 5, k); }},
    {"resnet44", [](std::size_t k) { return cifar_style(kA, 7, k); }},
    {"resnet56", [](std::size_t k) { return cifar_style(kA, 9, k); }},
    {"resnet110", [](std::size_t k) { return cifar_style(kA, 18, k); }},
    {"resnet20b", [](std::size_t k) { return cifar_style(kB, 3, k); }},
    {"resnet32b", [](std::size_t k) { return cifar_style(kB, 5, k); }},
    {"resnet44b", [](std::size_t k) { return cifar_style(kB, 7, k); }},
    {"resnet56b", [](std::size_t k) { return cifar_style(kB, 9, k); }},
    {"resnet110b", [](std::size_t k) { return cifar_style(kB, 18, k); }},
};

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Row& row : kModels) names.emplace_back(row.name);
  return names;
}

Graph make_model(const std::string& name, std::size_t classes) {
  std::string known;
  for (const Row& row : kModels) {
    if (name == row.name) return row.make(classes);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw_error(ErrorKind::usage, "--model {}: unknown model; known: {}", name, known);
}

}  // namespace dp::net
