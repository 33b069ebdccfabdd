#include "net/optimizer.hpp"

#include <new>
#include <utility>

#include "kernels/base/error.hpp"

namespace dp::net {

std::vector<ParameterGroup> make_groups(
    std::span<const Parameter> tensors,
    const std::function<GroupFactors(std::size_t tensor)>& factors_of) {
  std::vector<ParameterGroup> groups;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const GroupFactors factors = factors_of(t);
    if (!groups.empty() && groups.back().factors == factors) {
      groups.back().elements += tensors[t].elements;
    } else {
      groups.push_back(
          {.offset = tensors[t].offset, .elements = tensors[t].elements, .factors = factors});
    }
  }
  return groups;
}

Sgd::Sgd(Device& device, Parameters& parameters, const SgdOptions& options)
    : device_(device),
      parameters_(parameters),
      options_(options),
      velocity_(device.allocate(parameters.size() * sizeof(float))),
      squares_memory_(device.allocate_host(sizeof(double))),
      squares_(new (squares_memory_.get()) double(0.0)) {
  set_groups({{.offset = 0, .elements = parameters.size()}});
}

void Sgd::set_groups(std::vector<ParameterGroup> groups) {
  std::size_t end = 0;
  for (const ParameterGroup& group : groups) {
    DP_ASSERT(group.offset == end, "a group begins at {}, the one before it ends at {}",
              group.offset, end);
    end += group.elements;
  }
  DP_ASSERT(end == parameters_.size(), "groups of {} of {} parameters", end, parameters_.size());
  groups_ = std::move(groups);
  step_memory_ = device_.allocate_host(groups_.size() * sizeof(SgdStep));
  steps_ = reinterpret_cast<SgdStep*>(step_memory_.get());
  for (std::size_t g = 0; g < groups_.size(); ++g) new (steps_ + g) SgdStep{};
  update_ = device_.record([this] { enqueue(); });
}

void Sgd::step(double learning_rate) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupFactors& factors = groups_[g].factors;
    const auto scaled = [](double value, double factor) {
      return static_cast<float>(value * factor);
    };
    steps_[g] = {.learning_rate = scaled(learning_rate, factors.learning_rate),
                 .momentum = scaled(options_.momentum, factors.momentum),
                 .weight_decay = scaled(options_.weight_decay, factors.weight_decay),
                 .has_nesterov = options_.has_nesterov,
                 .clip_norm = options_.clip_norm};
  }
  update_->replay();
}

void Sgd::enqueue() {
  // All ranks hold the same bits, so all clip in the same way.
  const bool clips = options_.clip_norm > 0;
  if (clips) sum_of_squares(device_, parameters_.gradients(), squares_);
  const std::span<float> velocity(reinterpret_cast<float*>(velocity_.get()), parameters_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto& [offset, elements, factors] = groups_[g];
    sgd_update(device_, parameters_.values().subspan(offset, elements),
               parameters_.gradients().subspan(offset, elements),
               velocity.subspan(offset, elements), steps_ + g, clips ? squares_ : nullptr);
  }
}

void Sgd::list_state(StateVisitor& visitor) {
  visitor.values("optimizer/velocity",
                 std::span(reinterpret_cast<float*>(velocity_.get()), parameters_.size()),
                 StateShare::replicated, StatePlace::device);
}

}  // namespace dp::net
