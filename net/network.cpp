#include "net/network.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.hpp"
#include "kernels/host_memory.hpp"

namespace dp::net {

Network::Network(Device& device, Graph graph, DataType activation_type, std::uint64_t seed)
    : device_(device),
      graph_(std::move(graph)),
      activation_type_(activation_type),
      position_(device) {
  position_[0].seed = seed;
  place_parameters();
  parameters_->initialise(seed);
}

void Network::place_parameters() {
  const auto& nodes = graph_.nodes();
  std::vector<Shape> shapes(nodes.size());
  shapes[0] = graph_.images_shape(1);
  std::vector<std::vector<ParameterSpec>> specs(nodes.size());
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    std::vector<Shape> inputs;
    for (const std::size_t input : nodes[i].inputs) inputs.push_back(shapes[input]);
    const std::unique_ptr<Layer> layer = nodes[i].make();
    shapes[i] = layer->output_shape(inputs);
    specs[i] = layer->parameters(inputs);
  }
  classes_ = shapes.back().c;

  // Backward runs the nodes from last to first.
  std::vector<Parameter> ordered;
  for (std::size_t i = nodes.size() - 1; i >= 1; --i) {
    for (const ParameterSpec& spec : specs[i]) {
      ordered.push_back({.name = nodes[i].name + "." + spec.name,
                         .shape = spec.shape,
                         .kind = spec.kind,
                         .init = spec.init,
                         .fan_in = spec.fan_in,
                         .trained_epochs = spec.trained_epochs,
                         .is_linear = spec.is_linear});
    }
  }
  parameters_ = std::make_unique<Parameters>(device_, std::move(ordered));

  const auto index_of = [](std::span<const Parameter> list, const std::string& name) {
    const auto it =
        std::find_if(list.begin(), list.end(), [&](const Parameter& p) { return p.name == name; });
    DP_ASSERT(it != list.end(), "no parameter {}", name);
    return static_cast<std::size_t>(it - list.begin());
  };
  slots_.resize(nodes.size());
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    for (const ParameterSpec& spec : specs[i]) {
      const auto list = spec.kind == ParameterKind::statistic ? parameters_->statistics()
                        : spec.kind == ParameterKind::frozen  ? parameters_->frozen()
                                                              : parameters_->tensors();
      slots_[i].push_back({spec.kind, index_of(list, nodes[i].name + "." + spec.name)});
    }
  }
}

std::vector<std::vector<BoundParameter>> Network::bound_parameters(Mode mode) {
  const bool is_training = mode == Mode::training;
  const std::span<float> statistics =
      is_training ? parameters_->training_statistics() : parameters_->evaluation_statistics();
  std::vector<std::vector<BoundParameter>> bound(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    for (const Slot& slot : slots_[i]) {
      if (slot.kind == ParameterKind::statistic) {
        bound[i].push_back(
            {statistics.data() + parameters_->statistics()[slot.index].offset, nullptr});
      } else if (slot.kind == ParameterKind::frozen) {
        bound[i].push_back(
            {parameters_->frozen_values().data() + parameters_->frozen()[slot.index].offset,
             nullptr});
      } else {
        const std::size_t offset = parameters_->tensors()[slot.index].offset;
        bound[i].push_back({parameters_->values().data() + offset,
                            is_training ? parameters_->gradients().data() + offset : nullptr});
      }
    }
  }
  return bound;
}

void Network::prepare(std::size_t batch, Mode mode) {
  if (batch == 0 || executors_.contains({batch, mode})) return;
  const bool is_training = mode == Mode::training;
  auto made = std::make_unique<Executor>(device_, graph_,
                                         ExecutorOptions{.batch = batch,
                                                         .is_training = is_training,
                                                         .activation_type = activation_type_,
                                                         .position = position_.at(0),
                                                         .gather = gather_,
                                                         .trace = is_training ? trace_ : nullptr},
                                         bound_parameters(mode));
  if (made->arena_bytes() > arena_bytes_) {
    arena_.reset();
    arena_bytes_ = 0;
    arena_ = allocate_arena(made->arena_bytes(), batch);
    arena_bytes_ = made->arena_bytes();
    for (auto& [key, other] : executors_) other->set_arena(arena_.get());
  }
  made->set_arena(arena_.get());
  executors_.emplace(std::pair(batch, mode), std::move(made));
}

// Activations may take this share of the free memory. The rest is for libraries and scratch memory.
constexpr double kShareForActivations = 0.95;

[[noreturn]] void throw_too_large(std::size_t batch, std::size_t bytes, const FreeMemory& free) {
  const double fits = static_cast<double>(batch) * kShareForActivations *
                      static_cast<double>(free.bytes) / static_cast<double>(bytes);
  throw OutOfMemory(fmt::format(
      "out of memory: the activations of {} images take {:.1f} GiB, and {} leaves {:.1f} GiB{}; "
      "about {:.0f} images would fit",
      batch, static_cast<double>(bytes) / 0x1p30, free.limit,
      static_cast<double>(free.bytes) / 0x1p30, free.is_of_process ? "" : " to a rank",
      std::floor(fits)));
}

std::size_t Network::planned_bytes(std::size_t batch) {
  if (batch == 0) return 0;
  if (device_.kind() != DeviceKind::cpu) {
    for (const auto& [key, made] : executors_) {
      if (key.second == Mode::training) return made->arena_bytes() / key.first * batch;
    }
    return 0;
  }
  // A plan for one image is enough, because everything in the arena grows in proportion to the
  // batch. The plan is made on a device of its own, so that this device's chosen algorithms and
  // scratch memory do not change.
  const std::unique_ptr<Device> planner =
      make_device({.kind = DeviceKind::cpu, .threads = device_.threads(), .tune = false});
  const Executor one(*planner, graph_,
                     {.batch = 1,
                      .is_training = true,
                      .activation_type = activation_type_,
                      .position = position_.at(0),
                      .gather = nullptr,
                      .trace = nullptr},
                     bound_parameters(Mode::training));
  return one.arena_bytes() * batch;
}

void Network::check_memory(std::size_t batch, std::size_t processes) {
  if (device_.kind() != DeviceKind::cpu) return;
  const std::size_t bytes = planned_bytes(batch);
  if (bytes == 0) return;
  const FreeMemory free = free_host_memory(processes);
  if (static_cast<double>(bytes) > kShareForActivations * static_cast<double>(free.bytes)) {
    throw_too_large(batch, bytes, free);
  }
}

Device::Memory Network::allocate_arena(std::size_t bytes, std::size_t batch) {
  try {
    return device_.allocate(bytes);
  } catch (const OutOfMemory&) {
    const bool is_on_host = device_.kind() == DeviceKind::cpu;
    throw_too_large(batch, bytes,
                    is_on_host ? free_host_memory()
                               : FreeMemory{device_.free_bytes(), "the GPU's memory", true});
  }
}

Executor& Network::executor(std::size_t batch, Mode mode) {
  const auto it = executors_.find({batch, mode});
  DP_ASSERT(it != executors_.end(), "the network was not prepared for a batch of {}", batch);
  return *it->second;
}

TensorView Network::forward(const TensorView& images, Mode mode) {
  Executor& chosen = executor(images.desc.shape.n, mode);
  last_ = mode == Mode::training ? &chosen : nullptr;
  return chosen.forward(images);
}

const TensorView& Network::logit_gradient() const {
  DP_ASSERT(last_ != nullptr, "a forward pass in training mode must come first");
  return last_->logit_gradient();
}

void Network::backward(const TensorView& images, const TensorCallback& tensor_final) {
  DP_ASSERT(last_ != nullptr, "a forward pass in training mode must come first");
  last_->backward(images, [&](std::size_t node) {
    if (!tensor_final) return;
    for (const Slot& slot : slots_[node]) {
      if (slot.is_trained()) tensor_final(slot.index);
    }
  });
}

// Layers gather the same number of values for every batch size, so any executor in training will
// do.
void Network::take_part_without_images() {
  const auto it = std::ranges::find_if(
      executors_, [](const auto& entry) { return entry.first.second == Mode::training; });
  DP_ASSERT(it != executors_.end(), "no batch size was prepared for training");
  it->second->take_part_without_images();
}

std::vector<std::string> Network::layer_names() const {
  std::vector<std::string> names;
  for (const Graph::Node& node : graph_.nodes()) names.push_back(node.name);
  return names;
}

std::vector<std::string> Network::algorithms() const {
  for (const auto& [key, made] : executors_) {
    if (key.second == Mode::training) return made->algorithms();
  }
  return {};
}

}  // namespace dp::net
