#include "comm/topologies/direct.hpp"

namespace dp {

ExchangePlan direct_plan(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                         std::size_t window) {
  ExchangePlan plan(shape);
  const std::size_t p = shape.ranks;
  if (p < 2) return plan;
  // A total needs a partial sum from every rank, so no rank finishes before all have started. Start
  // notices are therefore not necessary.
  if (shape.has_brief_messages) plan.notices = ExchangePlan::Notices::none;
  using Take = PlanTask::Take;
  using Give = PlanTask::Give;
  const auto after = [&](std::size_t d) { return static_cast<int>((rank + d) % p); };
  const auto before = [&](std::size_t d) { return static_cast<int>((rank + p - d) % p); };
  const auto chunk_of = [&](int owner) { return shape.chunk_of(static_cast<std::size_t>(owner)); };
  std::vector<int> others;
  for (std::size_t d = 1; d < p; ++d) others.push_back(after(d));
  for (std::size_t group = 0; group < shape.segments(); group += window) {
    const std::size_t end = std::min(group + window, shape.segments());
    for (std::size_t d = 1; d < p; ++d) {
      const int owner = after(d);
      for (std::size_t at = group; at < end; ++at) {
        plan.add(chunk_of(owner), at, {.give = Give::partial}, {owner});
      }
    }
    for (std::size_t d = 1; d < p; ++d) {
      const bool is_last = d == p - 1;
      for (std::size_t at = group; at < end; ++at) {
        plan.add(shape.chunk_of(rank), at,
                 {.from = before(d),
                  .take = Take::partial,
                  .give = is_last ? Give::total : Give::nothing,
                  .holds_only_own_values = d == 1},
                 is_last ? std::span<const int>(others) : std::span<const int>());
      }
    }
    for (std::size_t at = group; at < end; ++at) {
      for (std::size_t d = 1; d < p; ++d) {
        const int owner = before(d);
        plan.add(chunk_of(owner), at, {.from = owner, .take = Take::total});
      }
    }
  }
  return plan;
}

std::uint64_t direct_wire_bytes(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                                const Codec& codec) {
  const std::size_t p = shape.ranks;
  if (p < 2 || shape.elements == 0) return 0;
  const std::size_t own = shape.chunk_of(rank);
  std::uint64_t bytes = (p - 1) * chunk_wire_bytes(shape, own, codec) + notice_bytes(p);
  for (std::size_t chunk = 0; chunk < p; ++chunk) {
    if (chunk != own) bytes += chunk_wire_bytes(shape, chunk, codec);
  }
  return bytes;
}

std::size_t direct_hops(std::size_t ranks, std::span<const int>) { return ranks < 2 ? 0 : 2; }

}  // namespace dp
