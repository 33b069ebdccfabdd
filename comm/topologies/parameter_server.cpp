#include "comm/topologies/parameter_server.hpp"

namespace dp {

ExchangePlan parameter_server_plan(const ExchangeShape& shape, std::span<const int>,
                                   std::size_t rank, std::size_t) {
  ExchangePlan plan(shape.whole());
  if (shape.ranks < 2) return plan;
  using Take = PlanTask::Take;
  using Give = PlanTask::Give;
  const int last = static_cast<int>(shape.ranks) - 1;
  std::vector<int> others;
  for (int other = 1; other <= last; ++other) others.push_back(other);
  for (std::size_t at = 0; at < plan.shape.segments(); ++at) {
    if (rank > 0) {
      plan.add(0, at, {.give = Give::partial}, {0});
      plan.add(0, at, {.from = 0, .take = Take::total});
      continue;
    }
    for (const int other : others) {
      PlanTask task{.from = other, .take = Take::partial, .holds_only_own_values = other == 1};
      if (other < last) {
        plan.add(0, at, task);
      } else {
        task.give = Give::total;
        plan.add(0, at, task, others);
      }
    }
  }
  return plan;
}

std::uint64_t parameter_server_wire_bytes(const ExchangeShape& shape, std::span<const int>,
                                          std::size_t rank, const Codec& codec) {
  if (shape.ranks < 2 || shape.elements == 0) return 0;
  const std::size_t times = rank == 0 ? shape.ranks - 1 : 1;
  return times * chunk_wire_bytes(shape.whole(), 0, codec) + notice_bytes(shape.ranks);
}

std::size_t parameter_server_hops(std::size_t ranks, std::span<const int>) {
  return ranks < 2 ? 0 : 2;
}

double parameter_server_wire_factor(std::size_t ranks, std::span<const int>, std::size_t rank) {
  if (ranks < 2) return 0.0;
  return rank == 0 ? static_cast<double>(ranks - 1) : 1.0;
}

}  // namespace dp
