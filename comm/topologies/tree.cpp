#include "comm/topologies/tree.hpp"

#include <bit>

namespace dp {
namespace {

// Nearest first.
std::vector<int> children_of(std::size_t rank, std::size_t ranks) {
  std::vector<int> children;
  for (std::size_t bit = 1; (rank & bit) == 0 && rank + bit < ranks; bit *= 2) {
    children.push_back(static_cast<int>(rank + bit));
  }
  return children;
}

}  // namespace

ExchangePlan tree_plan(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                       std::size_t window) {
  ExchangePlan plan(shape.whole());
  if (shape.ranks < 2) return plan;
  using Take = PlanTask::Take;
  using Give = PlanTask::Give;
  const bool is_root = rank == 0;
  const int parent = static_cast<int>(rank & (rank - 1));
  const std::vector<int> children = children_of(rank, shape.ranks);
  const std::vector<int> down(children.rbegin(), children.rend());
  const std::size_t segments = plan.shape.segments();
  for (std::size_t group = 0; group < segments; group += window) {
    const std::size_t end = std::min(group + window, segments);
    for (std::size_t at = group; at < end; ++at) {
      if (children.empty()) plan.add(0, at, {.give = Give::partial}, {parent});
      for (std::size_t i = 0; i < children.size(); ++i) {
        PlanTask task{.from = children[i], .take = Take::partial, .holds_only_own_values = i == 0};
        if (i + 1 < children.size()) {
          plan.add(0, at, task);
        } else if (is_root) {
          task.give = Give::total;
          plan.add(0, at, task, down);
        } else {
          task.give = Give::partial;
          plan.add(0, at, task, {parent});
        }
      }
    }
    for (std::size_t at = group; at < end && !is_root; ++at) {
      plan.add(0, at,
               {.from = parent,
                .take = Take::total,
                .give = down.empty() ? Give::nothing : Give::message},
               down);
    }
  }
  return plan;
}

std::uint64_t tree_wire_bytes(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                              const Codec& codec) {
  if (shape.ranks < 2 || shape.elements == 0) return 0;
  const std::size_t times = children_of(rank, shape.ranks).size() + (rank > 0 ? 1 : 0);
  return times * chunk_wire_bytes(shape.whole(), 0, codec) + notice_bytes(shape.ranks);
}

std::size_t tree_hops(std::size_t ranks, std::span<const int>) {
  return ranks < 2 ? 0 : 2 * static_cast<std::size_t>(std::bit_width(ranks) - 1);
}

double tree_wire_factor(std::size_t ranks, std::span<const int>, std::size_t rank) {
  if (ranks < 2) return 0.0;
  return static_cast<double>(children_of(rank, ranks).size() + (rank > 0 ? 1 : 0));
}

}  // namespace dp
