#include <string>

#include "kernels/base/error.hpp"
#include "net/layers/batch_norm.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/elementwise.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"
#include "net/models/resnet.hpp"

namespace dp::net {

namespace {

// A value and its number of channels.
struct PreactFeatures {
  Value value;
  std::size_t channels;
};

class PreactBuilder {
 public:
  explicit PreactBuilder(const ResNetOptions& options) : options_(options), graph_(options.image) {}

  Graph build() {
    const PreactFeatures images = {graph_.images(), options_.image.channels};
    PreactFeatures x = conv("conv1", images, {.channels = options_.widths[0]});
    for (std::size_t stage = 0; stage < options_.blocks.size(); ++stage) {
      for (std::size_t i = 0; i < options_.blocks[stage]; ++i) {
        const std::size_t stride = stage > 0 && i == 0 ? 2 : 1;
        const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i);
        x = block(name, x, options_.widths[stage], stride);
      }
    }
    const Value pooled = graph_.add<GlobalAveragePoolLayer>("pool", {}, {x.value});
    graph_.add<LinearLayer>("linear", {.outputs = options_.classes}, {pooled});
    return std::move(graph_);
  }

 private:
  // No normalisation stands behind the last block, so the scale of the first weights reaches the
  // logits: with torch's default, as in kuangliu's definition, they begin small enough for the
  // learning rates of the other networks. (With He's they are some times as large, and 0.1
  // diverges.)
  PreactFeatures conv(const std::string& name, PreactFeatures x, Conv2dLayer::Options options) {
    options.init = Init::uniform_fan_in;
    return {graph_.add<Conv2dLayer>(name, options, {x.value}), options.channels};
  }
  PreactFeatures norm_relu(const std::string& name, PreactFeatures x) {
    return {graph_.add<BatchNormLayer>(name, {.has_relu = true}, {x.value}), x.channels};
  }

  PreactFeatures block(const std::string& name, PreactFeatures x, std::size_t width,
                       std::size_t stride) {
    const bool is_bottleneck = options_.block == BlockKind::bottleneck;
    const std::size_t channels = is_bottleneck ? 4 * width : width;
    const PreactFeatures active = norm_relu(name + ".bn1", x);
    PreactFeatures shortcut = x;
    if (stride != 1 || x.channels != channels) {
      shortcut = conv(name + ".shortcut.0", active,
                      {.channels = channels, .kernel = 1, .stride = stride, .padding = 0});
    }
    PreactFeatures y = active;
    if (is_bottleneck) {
      y = conv(name + ".conv1", y, {.channels = width, .kernel = 1, .padding = 0});
      y = conv(name + ".conv2", norm_relu(name + ".bn2", y), {.channels = width, .stride = stride});
      y = conv(name + ".conv3", norm_relu(name + ".bn3", y),
               {.channels = channels, .kernel = 1, .padding = 0});
    } else {
      y = conv(name + ".conv1", y, {.channels = width, .stride = stride});
      y = conv(name + ".conv2", norm_relu(name + ".bn2", y), {.channels = width});
    }
    return {graph_.add<AddLayer>(name + ".sum", {}, {y.value, shortcut.value}), channels};
  }

  const ResNetOptions& options_;
  Graph graph_;
};

}  // namespace

Graph preact_resnet(const ResNetOptions& options) {
  DP_ASSERT(options.blocks.size() == options.widths.size() && !options.blocks.empty(),
            "{} stages, {} widths", options.blocks.size(), options.widths.size());
  return PreactBuilder(options).build();
}

}  // namespace dp::net
