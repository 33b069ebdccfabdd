#include "comm/topologies/ring.hpp"

namespace dp {

ExchangePlan ring_plan(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                       std::size_t window) {
  ExchangePlan plan(shape);
  const std::size_t p = shape.ranks, hops = 2 * (p - 1);
  if (p < 2) return plan;
  const int left = static_cast<int>((rank + p - 1) % p), right = static_cast<int>((rank + 1) % p);
  using enum PlanTask::Give;
  for (std::size_t group = 0; group < shape.segments(); group += window) {
    const std::size_t end = std::min(group + window, shape.segments());
    for (std::size_t at = group; at < end; ++at) plan.add(rank, at, {.give = partial}, {right});
    // A task receives the message of `hop` and then sends the message of hop + 1.
    for (std::size_t hop = 0; hop < hops; ++hop) {
      const std::size_t chunk = (rank + 2 * p - 1 - hop) % p;
      for (std::size_t at = group; at < end; ++at) {
        if (hop < p - 1) {
          plan.add(chunk, at,
                   {.from = left,
                    .take = PlanTask::Take::partial,
                    .give = hop < p - 2 ? partial : total,
                    .holds_only_own_values = true},
                   {right});
        } else if (hop < hops - 1) {
          plan.add(chunk, at, {.from = left, .take = PlanTask::Take::total, .give = message},
                   {right});
        } else {
          plan.add(chunk, at, {.from = left, .take = PlanTask::Take::total});
        }
      }
    }
  }
  return plan;
}

std::uint64_t ring_wire_bytes(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                              const Codec& codec) {
  const std::size_t p = shape.ranks;
  if (p < 2 || shape.elements == 0) return 0;
  std::uint64_t all = 0;
  for (std::size_t chunk = 0; chunk < p; ++chunk) all += chunk_wire_bytes(shape, chunk, codec);
  return 2 * all - chunk_wire_bytes(shape, (rank + 1) % p, codec) -
         chunk_wire_bytes(shape, (rank + 2) % p, codec) + notice_bytes(p);
}

std::size_t ring_hops(std::size_t ranks, std::span<const int>) {
  return ranks < 2 ? 0 : 2 * (ranks - 1);
}

double ring_wire_factor(std::size_t ranks, std::span<const int>, std::size_t) {
  return ranks < 2 ? 0.0 : 2.0 * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

}  // namespace dp
