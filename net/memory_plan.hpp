// Places buffers with known lifetimes in one arena. Buffers that are never needed at the same time
// may share memory.
#pragma once

#include <cstddef>
#include <vector>

namespace dp::net {

struct Lifetime {
  std::size_t bytes;
  std::size_t first, last;  // both inclusive, in any unit of time
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  // one per buffer, multiples of 64
  std::size_t bytes = 0;             // the arena's size
};

// Places the buffers from the largest to the smallest. Each buffer gets the lowest offset at which
// it shares no memory with a buffer that is already placed and needed at the same time (Pisarchyk
// and Lee 2020, "greedy by size for offset calculation").
[[nodiscard]] MemoryPlan plan_memory(const std::vector<Lifetime>& buffers);

}  // namespace dp::net
