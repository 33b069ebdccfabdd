// Packs buffers with known lifetimes into one arena: buffers that are never needed at the same time
// share memory.
#pragma once

#include <cstddef>
#include <vector>

namespace dp::net {

struct Lifetime {
  std::size_t bytes;
  std::size_t first, last;  // inclusive, in any common unit of time
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  // one per buffer, multiples of 64
  std::size_t bytes = 0;             // the arena's size
};

// Greedy by size: the largest buffer first, each at the lowest offset where it fits between those
// already placed that live at the same time (Pisarchyk and Lee 2020, "greedy by size for offset
// calculation").
[[nodiscard]] MemoryPlan plan_memory(const std::vector<Lifetime>& buffers);

}  // namespace dp::net
