#include "net/optimizer.hpp"

#include <algorithm>
#include <array>

#include "kernels/base/error.hpp"
#include "kernels/sgd.hpp"

namespace dp::net {

namespace {

struct OptimizerRow {
  OptimizerKind kind;
  std::string_view name;
  std::unique_ptr<Optimizer> (*make)(Device&, Parameters&, const OptimizerOptions&);
  bool can_leave_momentum, can_leave_step;
};

constexpr std::array<OptimizerRow, 5> kOptimizers = {{
    {OptimizerKind::sgd, "sgd", make_sgd, true, false},
    {OptimizerKind::adam, "adam", make_adam, false, true},
    {OptimizerKind::adamw, "adamw", make_adam, false, true},
    {OptimizerKind::lars, "lars", make_lars, false, false},
    {OptimizerKind::muon, "muon", make_muon, false, false},
}};

const OptimizerRow& row_of(OptimizerKind kind) {
  for (const OptimizerRow& row : kOptimizers) {
    if (row.kind == kind) return row;
  }
  throw_error(ErrorKind::internal, "no optimiser number {}", static_cast<int>(kind));
}

}  // namespace

Optimizer::Optimizer(Device& device, Parameters& parameters, const OptimizerOptions& options)
    : device_(device), parameters_(parameters), options_(options), squares_(device, 1) {}

void Optimizer::set_groups(std::vector<ParameterGroup> groups) {
  std::size_t end = 0;
  for (const ParameterGroup& group : groups) {
    DP_ASSERT(group.offset == end, "a group begins at {}, but the previous group ends at {}",
              group.offset, end);
    end += group.elements;
  }
  DP_ASSERT(end == parameters_.size(), "the groups cover {} instead of {} parameters", end,
            parameters_.size());
  slices_ = slices_of(groups);
  prepare();
  update_ = device_.record([this] {
    // All ranks hold the same bits, so all clip in the same way.
    const bool clips = options_.clip_norm > 0;
    if (clips) sum_of_squares(device_, parameters_.gradients(), squares_.at(0));
    enqueue(clips ? squares_.at(0) : nullptr);
  });
}

void Optimizer::step(double learning_rate) {
  set_numbers(learning_rate);
  update_->replay();
}

std::vector<Optimizer::Slice> Optimizer::slices_of(const std::vector<ParameterGroup>& groups) {
  std::vector<Slice> slices;
  for (const auto& [offset, elements, factors] : groups) {
    slices.push_back({.offset = offset, .elements = elements, .factors = factors});
  }
  return slices;
}

std::vector<Optimizer::Slice> Optimizer::tensors_of(const std::vector<ParameterGroup>& groups) {
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

std::unique_ptr<Optimizer> make_optimizer(Device& device, Parameters& parameters,
                                          const OptimizerOptions& options) {
  return row_of(options.kind).make(device, parameters, options);
}

std::string_view optimizer_name(OptimizerKind kind) { return row_of(kind).name; }

bool can_leave_momentum(OptimizerKind kind) { return row_of(kind).can_leave_momentum; }

bool can_leave_step(OptimizerKind kind) { return row_of(kind).can_leave_step; }

double momentum_of(const OptimizerOptions& options) {
  const bool is_adam = options.kind == OptimizerKind::adam || options.kind == OptimizerKind::adamw;
  if (is_adam) return options.beta1;
  const bool is_muon = options.kind == OptimizerKind::muon;
  return is_muon ? std::min(options.momentum, options.muon_momentum) : options.momentum;
}

}  // namespace dp::net
