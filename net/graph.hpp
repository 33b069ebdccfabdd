// A model as data: a list of layers in the order of execution. Each layer reads the values of
// earlier layers. A model is a function that returns a Graph; a Network gives the Graph parameters
// and runs it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/pixels.hpp"
#include "kernels/tensor.hpp"
#include "net/layer.hpp"

namespace dp::net {

// The output of a node.
enum class Value : std::size_t {};

class Graph {
 public:
  struct Node {
    std::string name;  // torch's module path: "layer1.0.conv1"
    std::function<std::unique_ptr<Layer>()> make;
    std::vector<std::size_t> inputs;  // indices of earlier nodes; the images are node 0
  };

  explicit Graph(const ImageShape& image) : image_(image) {
    nodes_.push_back({"images", nullptr, {}});
  }

  [[nodiscard]] Value images() const { return Value{0}; }

  // Adds a layer: graph.add<Conv2dLayer>("conv1", {.channels = 64}, {x}).
  template <class L>
  Value add(std::string name, const typename L::Options& options,
            const std::vector<Value>& inputs) {
    Node node{std::move(name), [options] { return std::make_unique<L>(options); }, {}};
    for (const Value v : inputs) node.inputs.push_back(static_cast<std::size_t>(v));
    nodes_.push_back(std::move(node));
    return Value{nodes_.size() - 1};
  }

  [[nodiscard]] const ImageShape& image() const { return image_; }
  // The shape of a batch of images, as a network reads it.
  [[nodiscard]] Shape images_shape(std::size_t batch) const {
    return {batch, image_.height, image_.width, image_.channels};
  }
  // Node 0 is the images; the last node's value is the logits.
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }

 private:
  ImageShape image_;
  std::vector<Node> nodes_;
};

}  // namespace dp::net
