// Runs a graph for one batch size. The constructor plans the layers for its shapes and gives every
// value and gradient a fixed place in one arena.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/base/trace.hpp"
#include "kernels/device.hpp"
#include "net/graph.hpp"
#include "net/layer.hpp"

namespace dp::net {

// Called by backward() when the parameter gradients of node `node` are final.
using NodeCallback = std::function<void(std::size_t node)>;

struct ExecutorOptions {
  std::size_t batch;
  bool is_training;
  DataType activation_type = DataType::f32;
  const StepPosition* position = nullptr;  // read by layers that draw random numbers
  RankGather* gather = nullptr;            // for layers that use the images of all ranks
  TraceTrack* trace = nullptr;             // records each layer's forward and backward; null: none
};

class Executor {
 public:
  // The parameters in parameters[node] are bound to the layer of that node.
  Executor(Device& device, const Graph& graph, const ExecutorOptions& options,
           std::vector<std::vector<BoundParameter>> parameters);

  [[nodiscard]] std::size_t arena_bytes() const { return arena_bytes_; }
  // The executors of a network share one arena, because they never run at the same time.
  void set_arena(std::byte* arena);

  // images: NHWC fp32 with the planned batch. Returns the logits, which stay valid until backward.
  [[nodiscard]] TensorView forward(const TensorView& images);
  // The loss writes its gradient with respect to the logits here. Training only.
  [[nodiscard]] const TensorView& logit_gradient() const { return gradients_.back().view; }
  // Call it after forward, with the same images, when logit_gradient() is filled.
  void backward(const TensorView& images, const NodeCallback& gradients_final);
  // With a RankGather, a rank without images calls this instead of forward and backward.
  void take_part_without_images();

  // "layer1.0.conv1: forward winograd, ...", for each layer that has a choice of algorithms.
  [[nodiscard]] std::vector<std::string> algorithms() const;

 private:
  // The gradient that consumer `node` computes for its input number `input`.
  struct Gradient {
    std::size_t node, input;
    std::size_t producer;
    TensorView view;
  };

  void plan_layers(const std::vector<std::vector<BoundParameter>>& parameters);
  void plan_gradients();
  void plan_arena();
  void backward_node(std::size_t node);

  Device& device_;
  const Graph& graph_;
  ExecutorOptions options_;
  std::vector<std::unique_ptr<Layer>> layers_;  // [0], the images, is null
  std::vector<TensorView> values_;              // one per node
  // The gradients, one for each edge that has a gradient, sorted by consumer. The last one is the
  // gradient of the logits.
  std::vector<Gradient> gradients_;
  std::vector<std::size_t> offsets_;  // of values, then of gradients, then of what layers keep
  std::size_t arena_bytes_ = 0;
  std::vector<std::byte*> kept_;  // by node: null if the layer keeps nothing
  // By node, in the form that the layer's methods take: the values that the layer reads, and the
  // gradients that it writes.
  std::vector<std::vector<TensorView>> inputs_, input_gradients_;
  // By node: the indices in gradients_ of the gradients with respect to the node's output. Each
  // consumer computes one.
  std::vector<std::vector<std::size_t>> read_;
};

}  // namespace dp::net
