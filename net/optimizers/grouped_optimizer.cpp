#include "net/optimizers/grouped_optimizer.hpp"

#include "kernels/base/error.hpp"
#include "kernels/sgd.hpp"

namespace dp::net {

GroupedOptimizer::GroupedOptimizer(Device& device, Parameters& parameters,
                                   const OptimizerOptions& options)
    : device_(device), parameters_(parameters), options_(options), squares_(device, 1) {}

void GroupedOptimizer::set_groups(std::vector<ParameterGroup> groups) {
  std::size_t end = 0;
  for (const ParameterGroup& group : groups) {
    DP_ASSERT(group.offset == end, "a group begins at {}, the one before it ends at {}",
              group.offset, end);
    end += group.elements;
  }
  DP_ASSERT(end == parameters_.size(), "groups of {} of {} parameters", end, parameters_.size());
  slices_ = slices_of(groups);
  prepare();
  update_ = device_.record([this] {
    // All ranks hold the same bits, so all clip in the same way.
    const bool clips = options_.clip_norm > 0;
    if (clips) sum_of_squares(device_, parameters_.gradients(), squares_.at(0));
    enqueue(clips ? squares_.at(0) : nullptr);
  });
}

void GroupedOptimizer::step(double learning_rate) {
  set_numbers(learning_rate);
  update_->replay();
}

std::vector<GroupedOptimizer::Slice> GroupedOptimizer::slices_of(
    const std::vector<ParameterGroup>& groups) {
  std::vector<Slice> slices;
  for (const auto& [offset, elements, factors] : groups) {
    slices.push_back({.offset = offset, .elements = elements, .factors = factors});
  }
  return slices;
}

std::vector<GroupedOptimizer::Slice> GroupedOptimizer::tensors_of(
    const std::vector<ParameterGroup>& groups) {
  std::vector<Slice> slices;
  std::size_t group = 0;
  for (const Parameter& tensor : parameters_.tensors()) {
    while (tensor.offset >= groups[group].offset + groups[group].elements) ++group;
    slices.push_back({.offset = tensor.offset,
                      .elements = tensor.elements,
                      .factors = groups[group].factors,
                      .tensor = &tensor});
  }
  return slices;
}

}  // namespace dp::net
