#include "net/backward_work.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "kernels/base/error.hpp"

namespace dp::net {

std::vector<double> backward_fractions(const Graph& graph, const Parameters& parameters) {
  const auto& nodes = graph.nodes();
  std::vector<Shape> shapes(nodes.size());
  shapes[0] = graph.images_shape(1);
  std::vector<double> work(nodes.size());
  std::vector<std::vector<std::string>> names(nodes.size());
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    std::vector<Shape> inputs;
    for (const std::size_t input : nodes[i].inputs) inputs.push_back(shapes[input]);
    const std::unique_ptr<Layer> layer = nodes[i].make();
    shapes[i] = layer->output_shape(inputs);
    for (const ParameterSpec& spec : layer->parameters(inputs)) {
      names[i].push_back(nodes[i].name + "." + spec.name);
      if (spec.kind != ParameterKind::matrix) continue;
      double elements = 1.0;
      for (const std::size_t size : spec.shape) elements *= static_cast<double>(size);
      work[i] += elements * static_cast<double>(shapes[i].pixels());
    }
  }
  // Backward runs from the last layer to the first.
  std::map<std::string, double> done;
  double sum = 0.0;
  for (std::size_t i = nodes.size() - 1; i >= 1; --i) {
    sum += work[i];
    for (const std::string& name : names[i]) done[name] = sum;
  }
  std::vector<double> fractions;
  for (const Parameter& tensor : parameters.tensors()) {
    const auto found = done.find(tensor.name);
    DP_ASSERT(found != done.end() && sum > 0.0, "no layer has {}", tensor.name);
    fractions.push_back(found->second / sum);
  }
  return fractions;
}

}  // namespace dp::net
