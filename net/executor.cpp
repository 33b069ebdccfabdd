// Outline: the constructor plans everything for one batch size.
//   1. plan_layers() makes a layer for each node in the order of execution, which yields the
//      shapes of all values.
//   2. plan_gradients(), in training: one gradient for each edge of the graph, except the edges
//      from the images.
//   3. plan_arena() computes how long each value, each gradient and the data that each layer keeps
//      for backward are needed, and places all of them in one arena.
// forward() calls the layers in order. backward() calls them in reverse; if a value has several
// consumers, it first adds their gradients.
#include "net/executor.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/elementwise.hpp"
#include "net/memory_plan.hpp"

namespace dp::net {

Executor::Executor(Device& device, const Graph& graph, const ExecutorOptions& options,
                   std::vector<std::vector<BoundParameter>> parameters)
    : device_(device), graph_(graph), options_(options) {
  DP_ASSERT(options.batch >= 1, "batch {}", options.batch);
  plan_layers(parameters);
  if (options_.is_training) plan_gradients();
  plan_arena();
}

void Executor::plan_layers(const std::vector<std::vector<BoundParameter>>& parameters) {
  const std::size_t count = graph_.nodes().size();
  layers_.resize(count);
  values_.resize(count);
  inputs_.resize(count);
  values_[0].desc = TensorDesc::nhwc(graph_.images_shape(options_.batch));
  for (std::size_t i = 1; i < count; ++i) {
    const Graph::Node& node = graph_.nodes()[i];
    std::vector<TensorDesc> inputs;
    for (const std::size_t input : node.inputs) inputs.push_back(values_[input].desc);
    layers_[i] = node.make();
    const bool reads_images =
        std::find(node.inputs.begin(), node.inputs.end(), 0u) != node.inputs.end();
    values_[i].desc = layers_[i]->plan({.device = device_,
                                        .activation_type = options_.activation_type,
                                        .is_training = options_.is_training,
                                        .needs_input_gradient = !reads_images,
                                        .position = options_.position,
                                        .gather = options_.gather},
                                       inputs);
    layers_[i]->bind(parameters[i]);
    inputs_[i].resize(inputs.size());
  }
}

void Executor::plan_gradients() {
  const std::size_t count = graph_.nodes().size();
  read_.resize(count);
  input_gradients_.resize(count);
  for (std::size_t i = 1; i < count; ++i) {
    const auto& inputs = graph_.nodes()[i].inputs;
    input_gradients_[i].resize(inputs.size());
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k] == 0) continue;  // the images need no gradient
      read_[inputs[k]].push_back(gradients_.size());
      gradients_.push_back({i, k, inputs[k], {values_[inputs[k]].desc, nullptr}});
    }
  }
  read_.back().push_back(gradients_.size());
  gradients_.push_back({count, 0, count - 1, {values_.back().desc, nullptr}});
}

// The unit of lifetimes is a call: forward of node i is call i, the loss is call `count`, and
// backward of node i is call 2 * count - i.
void Executor::plan_arena() {
  const std::size_t count = graph_.nodes().size();
  const auto backward_time = [&](std::size_t node) { return 2 * count - node; };
  std::vector<Lifetime> lifetimes(count);
  for (std::size_t i = 1; i < count; ++i) {
    std::size_t last = i + 1 == count ? count : i;
    if (options_.is_training && layers_[i]->backward_reads_output()) last = backward_time(i);
    lifetimes[i] = {values_[i].desc.bytes(), i, last};
  }
  for (std::size_t j = 1; j < count; ++j) {
    const auto& inputs = graph_.nodes()[j].inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const bool is_kept = options_.is_training && layers_[j]->backward_reads_input(k);
      std::size_t& last = lifetimes[inputs[k]].last;
      last = std::max(last, is_kept ? backward_time(j) : j);
    }
  }
  lifetimes[0] = {0, 0, 0};  // the caller owns the images
  for (const Gradient& g : gradients_) {
    lifetimes.push_back({g.view.desc.bytes(), backward_time(g.node), backward_time(g.producer)});
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bytes = i > 0 && options_.is_training ? layers_[i]->kept_bytes() : 0;
    lifetimes.push_back({bytes, i, backward_time(i)});
  }
  MemoryPlan plan = plan_memory(lifetimes);
  offsets_ = std::move(plan.offsets);
  arena_bytes_ = plan.bytes;
}

void Executor::set_arena(std::byte* arena) {
  const std::size_t count = values_.size();
  for (std::size_t i = 1; i < count; ++i) values_[i].data = arena + offsets_[i];
  for (std::size_t g = 0; g < gradients_.size(); ++g) {
    gradients_[g].view.data = arena + offsets_[count + g];
    if (gradients_[g].node < count) {
      input_gradients_[gradients_[g].node][gradients_[g].input] = gradients_[g].view;
    }
  }
  kept_.assign(count, nullptr);
  for (std::size_t i = 1; i < count; ++i) {
    const auto& inputs = graph_.nodes()[i].inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) inputs_[i][k] = values_[inputs[k]];
    if (options_.is_training && layers_[i]->kept_bytes() > 0) {
      kept_[i] = arena + offsets_[count + gradients_.size() + i];
    }
  }
}

TensorView Executor::forward(const TensorView& images) {
  DP_ASSERT(images.desc == values_[0].desc, "planned for {}, given {}", to_string(values_[0].desc),
            to_string(images.desc));
  for (std::size_t i = 1; i < layers_.size(); ++i) {
    for (std::size_t k = 0; k < inputs_[i].size(); ++k) {
      if (graph_.nodes()[i].inputs[k] == 0) inputs_[i][k].data = images.data;
    }
    const TraceSlice slice(options_.trace, TraceKind::layer_forward, i);
    layers_[i]->forward({.x = inputs_[i], .y = values_[i], .kept = kept_[i]});
  }
  return values_.back();
}

void Executor::backward(const TensorView& images, const NodeCallback& gradients_final) {
  DP_ASSERT(options_.is_training, "an executor for evaluation has no backward pass");
  for (std::size_t i = layers_.size() - 1; i >= 1; --i) {
    for (std::size_t k = 0; k < inputs_[i].size(); ++k) {
      if (graph_.nodes()[i].inputs[k] == 0) inputs_[i][k].data = images.data;
    }
    backward_node(i);
    if (gradients_final) gradients_final(i);
  }
}

void Executor::take_part_without_images() {
  for (std::size_t i = 1; i < layers_.size(); ++i) layers_[i]->forward_without_images();
  for (std::size_t i = layers_.size() - 1; i >= 1; --i) layers_[i]->backward_without_images();
}

void Executor::backward_node(std::size_t node) {
  const TraceSlice slice(options_.trace, TraceKind::layer_backward, node);
  // Each consumer has written its own gradient of this value. Add gradients up until there are no
  // more of them than the layer accepts.
  const auto& incoming = read_[node];
  const std::size_t accepted = layers_[node]->accepts_two_gradients() ? 2 : 1;
  DP_ASSERT(!incoming.empty(), "{} has no consumer", graph_.nodes()[node].name);
  const TensorView& first = gradients_[incoming[0]].view;
  for (std::size_t i = accepted; i < incoming.size(); ++i) {
    add(device_, first, gradients_[incoming[i]].view, first);
  }
  const bool has_two = accepted == 2 && incoming.size() > 1;
  layers_[node]->backward({.x = inputs_[node],
                           .y = values_[node],
                           .dy = first,
                           .dy2 = has_two ? gradients_[incoming[1]].view : TensorView{},
                           .dx = input_gradients_[node],
                           .kept = kept_[node]});
}

std::vector<std::string> Executor::algorithms() const {
  std::vector<std::string> lines;
  for (std::size_t i = 1; i < layers_.size(); ++i) {
    const std::string chosen = layers_[i]->algorithms();
    if (!chosen.empty()) lines.push_back(graph_.nodes()[i].name + ": " + chosen);
  }
  return lines;
}

}  // namespace dp::net
