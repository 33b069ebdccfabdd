#include "net/memory_plan.hpp"

#include <algorithm>
#include <numeric>

namespace dp::net {

MemoryPlan plan_memory(const std::vector<Lifetime>& buffers) {
  constexpr std::size_t kAlignment = 64;
  const auto rounded = [&](std::size_t i) {
    return (buffers[i].bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rounded(a) > rounded(b); });

  MemoryPlan plan;
  plan.offsets.assign(buffers.size(), 0);
  std::vector<std::size_t> placed;  // sorted by offset
  for (const std::size_t i : order) {
    std::size_t offset = 0;
    for (const std::size_t other : placed) {
      const bool is_concurrent =
          buffers[i].first <= buffers[other].last && buffers[other].first <= buffers[i].last;
      if (!is_concurrent) continue;
      if (offset + rounded(i) <= plan.offsets[other]) break;
      offset = std::max(offset, plan.offsets[other] + rounded(other));
    }
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, offset + rounded(i));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](std::size_t a, std::size_t b) {
                                     return plan.offsets[a] < plan.offsets[b];
                                   }),
                  i);
  }
  return plan;
}

}  // namespace dp::net
