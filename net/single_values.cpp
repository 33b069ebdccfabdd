#include "net/single_values.hpp"

#include "net/layers/batch_norm.hpp"

namespace dp::net {

std::vector<std::string> norms_of_single_values(const Graph& graph) {
  const auto& nodes = graph.nodes();
  std::vector<Shape> shapes = {graph.images_shape(1)};
  std::vector<std::string> names;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    std::vector<Shape> inputs;
    for (const std::size_t input : nodes[i].inputs) inputs.push_back(shapes[input]);
    const std::unique_ptr<Layer> layer = nodes[i].make();
    shapes.push_back(layer->output_shape(inputs));
    const bool is_norm = dynamic_cast<const BatchNormLayer*>(layer.get()) != nullptr;
    if (is_norm && shapes[i].h * shapes[i].w == 1) names.push_back(nodes[i].name);
  }
  return names;
}

}  // namespace dp::net
