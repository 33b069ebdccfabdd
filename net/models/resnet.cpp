#include "net/models/resnet.hpp"

#include <string>

#include "kernels/base/error.hpp"
#include "net/layers/batch_norm.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/elementwise.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pad_shortcut.hpp"
#include "net/layers/pool.hpp"

namespace dp::net {

namespace {

// A value and its number of channels.
struct Features {
  Value value;
  std::size_t channels;
};

class ResNetBuilder {
 public:
  ResNetBuilder(const ResNetOptions& options, bool is_preact)
      : options_(options), is_preact_(is_preact), graph_(options.image) {}

  Graph build() {
    DP_ASSERT(options_.blocks.size() == options_.widths.size() && !options_.blocks.empty(),
              "the numbers of stages ({}) and widths ({}) must be equal and above 0",
              options_.blocks.size(), options_.widths.size());
    DP_ASSERT(!is_preact_ || !is_imagenet(), "a PreAct-ResNet has no ImageNet form");
    Features x = {graph_.images(), options_.image.channels};
    if (is_imagenet()) {
      x = conv("conv1", x,
               {.channels = options_.widths[0], .kernel = 7, .stride = 2, .padding = 3});
      x = norm("bn1", x, {.has_relu = true});
      const Pooling pooling = {.window = 3, .stride = 2, .padding = 1};
      x.value = graph_.add<MaxPoolLayer>("maxpool", pooling, {x.value});
    } else {
      x = conv("conv1", x, {.channels = options_.widths[0]});
      if (!is_preact_) x = norm("bn1", x, {.has_relu = true});
    }
    for (std::size_t stage = 0; stage < options_.blocks.size(); ++stage) {
      for (std::size_t i = 0; i < options_.blocks[stage]; ++i) {
        const std::size_t stride = stage > 0 && i == 0 ? 2 : 1;
        const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i);
        const std::size_t width = options_.widths[stage];
        x = is_preact_ ? preact_block(name, x, width, stride) : block(name, x, width, stride);
      }
    }
    const Value pooled = graph_.add<GlobalAveragePoolLayer>("pool", {}, {x.value});
    graph_.add<LinearLayer>(is_imagenet() ? "fc" : "linear", {.outputs = options_.classes},
                            {pooled});
    return std::move(graph_);
  }

 private:
  [[nodiscard]] bool is_imagenet() const { return options_.form == ResNetForm::imagenet; }

  // No normalisation follows the last block of a PreAct-ResNet, so the scale of the initial weights
  // reaches the logits. With torch's default initialisation, as in kuangliu's definition, the
  // logits begin small enough for the learning rates of the other networks. With He's
  // initialisation the logits are several times as large, and training diverges at a learning rate
  // of 0.1.
  Features conv(const std::string& name, Features x, Conv2dLayer::Options options) {
    if (is_preact_) options.init = Init::uniform_fan_in;
    return {graph_.add<Conv2dLayer>(name, options, {x.value}), options.channels};
  }
  Features norm(const std::string& name, Features x, const BatchNormLayer::Options& options) {
    return {graph_.add<BatchNormLayer>(name, options, {x.value}), x.channels};
  }
  // The end of a block: relu(bn(x) + shortcut).
  Features norm_add_relu(const std::string& name, Features x, Features shortcut) {
    return {graph_.add<BatchNormLayer>(name, {.has_relu = true, .has_addend = true},
                                       {x.value, shortcut.value}),
            x.channels};
  }

  Features block(const std::string& name, Features x, std::size_t width, std::size_t stride) {
    if (options_.block == BlockKind::bottleneck) {
      const std::size_t channels = 4 * width;
      Features y = conv(name + ".conv1", x, {.channels = width, .kernel = 1, .padding = 0});
      y = norm(name + ".bn1", y, {.has_relu = true});
      y = conv(name + ".conv2", y, {.channels = width, .stride = stride});
      y = norm(name + ".bn2", y, {.has_relu = true});
      y = conv(name + ".conv3", y, {.channels = channels, .kernel = 1, .padding = 0});
      return norm_add_relu(name + ".bn3", y, shortcut(name, x, channels, stride));
    }
    Features y = conv(name + ".conv1", x, {.channels = width, .stride = stride});
    y = norm(name + ".bn1", y, {.has_relu = true});
    y = conv(name + ".conv2", y, {.channels = width});
    return norm_add_relu(name + ".bn2", y, shortcut(name, x, width, stride));
  }

  Features preact_block(const std::string& name, Features x, std::size_t width,
                        std::size_t stride) {
    const bool is_bottleneck = options_.block == BlockKind::bottleneck;
    const std::size_t channels = is_bottleneck ? 4 * width : width;
    const Features active = norm(name + ".bn1", x, {.has_relu = true});
    Features shortcut = x;
    if (stride != 1 || x.channels != channels) {
      shortcut = conv(name + ".shortcut.0", active,
                      {.channels = channels, .kernel = 1, .stride = stride, .padding = 0});
    }
    Features y = active;
    if (is_bottleneck) {
      y = conv(name + ".conv1", y, {.channels = width, .kernel = 1, .padding = 0});
      y = conv(name + ".conv2", norm(name + ".bn2", y, {.has_relu = true}),
               {.channels = width, .stride = stride});
      y = conv(name + ".conv3", norm(name + ".bn3", y, {.has_relu = true}),
               {.channels = channels, .kernel = 1, .padding = 0});
    } else {
      y = conv(name + ".conv1", y, {.channels = width, .stride = stride});
      y = conv(name + ".conv2", norm(name + ".bn2", y, {.has_relu = true}), {.channels = width});
    }
    return {graph_.add<AddLayer>(name + ".sum", {}, {y.value, shortcut.value}), channels};
  }

  Features shortcut(const std::string& name, Features x, std::size_t channels, std::size_t stride) {
    if (stride == 1 && x.channels == channels) return x;
    if (options_.shortcut == ShortcutKind::padding) {
      return {graph_.add<PadShortcutLayer>(name + ".shortcut",
                                           {.channels = channels, .stride = stride}, {x.value}),
              channels};
    }
    const std::string path = name + (is_imagenet() ? ".downsample" : ".shortcut");
    const Features y =
        conv(path + ".0", x, {.channels = channels, .kernel = 1, .stride = stride, .padding = 0});
    return norm(path + ".1", y, {});
  }

  const ResNetOptions& options_;
  const bool is_preact_;
  Graph graph_;
};

}  // namespace

Graph resnet(const ResNetOptions& options) { return ResNetBuilder(options, false).build(); }

Graph preact_resnet(const ResNetOptions& options) { return ResNetBuilder(options, true).build(); }

}  // namespace dp::net
