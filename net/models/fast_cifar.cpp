#include "net/models/fast_cifar.hpp"

#include <string>

#include "net/layers/batch_norm.hpp"
#include "net/layers/conv2d.hpp"
#include "net/layers/elementwise.hpp"
#include "net/layers/linear.hpp"
#include "net/layers/pool.hpp"

namespace dp::net {

namespace {

// The end of both networks: max pooling, a linear layer without bias, a factor.
void add_head(Graph& graph, Value x, std::size_t window, std::size_t classes, float factor) {
  x = graph.add<MaxPoolLayer>("pool", {.window = window, .stride = window}, {x});
  x = graph.add<FlattenLayer>("flatten", {}, {x});
  x = graph.add<LinearLayer>("linear", {.outputs = classes, .has_bias = false}, {x});
  graph.add<ScaleLayer>("scale", {.factor = factor}, {x});
}

Value conv_bn_relu(Graph& graph, const std::string& name, Value x, std::size_t channels) {
  x = graph.add<Conv2dLayer>(name + ".conv", {.channels = channels, .init = Init::uniform_fan_in},
                             {x});
  return graph.add<BatchNormLayer>(name + ".bn", {.has_relu = true}, {x});
}

Value norm_gelu(Graph& graph, const std::string& block, const std::string& number, Value x) {
  // In airbench, momentum 0.6 is the weight of the old statistics. Here momentum is the weight of
  // the batch: 0.4.
  x = graph.add<BatchNormLayer>(block + ".norm" + number,
                                {.has_scale = false, .epsilon = 1e-12f, .momentum = 0.4f}, {x});
  return graph.add<GeluLayer>(block + ".gelu" + number, {}, {x});
}

Value airbench_block(Graph& graph, const std::string& name, Value x, std::size_t channels) {
  const Conv2dLayer::Options conv = {.channels = channels, .init = Init::identity_first};
  x = graph.add<Conv2dLayer>(name + ".conv1", conv, {x});
  x = graph.add<MaxPoolLayer>(name + ".pool", {.window = 2, .stride = 2}, {x});
  x = norm_gelu(graph, name, "1", x);
  x = graph.add<Conv2dLayer>(name + ".conv2", conv, {x});
  return norm_gelu(graph, name, "2", x);
}

}  // namespace

Graph resnet9(const FastCifarOptions& options) {
  Graph graph(options.image);
  Value x = conv_bn_relu(graph, "prep", graph.images(), 64);
  constexpr struct {
    const char* name;
    std::size_t channels;
    bool is_residual;
  } kLayers[] = {{"layer1", 128, true}, {"layer2", 256, false}, {"layer3", 512, true}};
  for (const auto& [name, channels, is_residual] : kLayers) {
    x = conv_bn_relu(graph, name, x, channels);
    x = graph.add<MaxPoolLayer>(std::string(name) + ".pool", {.window = 2, .stride = 2}, {x});
    if (!is_residual) continue;
    Value y = conv_bn_relu(graph, std::string(name) + ".res1", x, channels);
    y = conv_bn_relu(graph, std::string(name) + ".res2", y, channels);
    x = graph.add<AddLayer>(std::string(name) + ".add", {}, {x, y});
  }
  add_head(graph, x, 4, options.classes, 0.125f);
  return graph;
}

Graph airbench94(const FastCifarOptions& options) {
  constexpr std::size_t kKernel = 2;
  Graph graph(options.image);
  Value x = graph.add<Conv2dLayer>("whiten",
                                   {.channels = 2 * options.image.channels * kKernel * kKernel,
                                    .kernel = kKernel,
                                    .padding = 0,
                                    .has_bias = true,
                                    .is_frozen = true,
                                    .init = Init::whitening,
                                    .bias_epochs = 3},
                                   {graph.images()});
  x = graph.add<GeluLayer>("whiten.gelu", {}, {x});
  x = airbench_block(graph, "block1", x, 64);
  x = airbench_block(graph, "block2", x, 256);
  x = airbench_block(graph, "block3", x, 256);
  add_head(graph, x, 3, options.classes, 1.0f / 9.0f);
  return graph;
}

}  // namespace dp::net
