// Tests the memory plan on random lifetimes: buffers with overlapping lifetimes never share memory.
#include "net/memory_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/random.hpp"

namespace dp::test {
namespace {

using net::Lifetime;
using net::MemoryPlan;

void check(const std::vector<Lifetime>& buffers, const MemoryPlan& plan) {
  ASSERT_EQ(plan.offsets.size(), buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(plan.offsets[i] % 64, 0u);
    EXPECT_LE(plan.offsets[i] + buffers[i].bytes, plan.bytes);
    for (std::size_t j = 0; j < i; ++j) {
      const bool is_concurrent =
          buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last;
      const bool is_apart = plan.offsets[i] + buffers[i].bytes <= plan.offsets[j] ||
                            plan.offsets[j] + buffers[j].bytes <= plan.offsets[i];
      const bool is_empty = buffers[i].bytes == 0 || buffers[j].bytes == 0;
      EXPECT_TRUE(!is_concurrent || is_apart || is_empty) << i << " and " << j;
    }
  }
}

TEST(MemoryPlan, ConcurrentBuffersAreApart) {
  for (std::uint64_t round = 0; round < 300; ++round) {
    const CounterRng rng(7, RandomStream::test, round);
    std::vector<Lifetime> buffers(1 + rng.below(60, 0));
    std::size_t sum = 0, most_alive = 0;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const std::size_t first = rng.below(40, 3 * i + 1);
      buffers[i] = {rng.below(1000, 3 * i + 2), first, first + rng.below(12, 3 * i + 3)};
      sum += (buffers[i].bytes + 63) / 64 * 64;
    }
    const MemoryPlan plan = net::plan_memory(buffers);
    check(buffers, plan);
    // A plan needs at least what is alive at the same time, and at most what buffers take without
    // sharing.
    for (std::size_t time = 0; time < 60; ++time) {
      std::size_t alive = 0;
      for (const Lifetime& b : buffers) {
        if (b.first <= time && time <= b.last) alive += (b.bytes + 63) / 64 * 64;
      }
      most_alive = std::max(most_alive, alive);
    }
    EXPECT_GE(plan.bytes, most_alive);
    EXPECT_LE(plan.bytes, sum);
  }
}

TEST(MemoryPlan, BuffersInSuccessionShare) {
  const std::vector<Lifetime> buffers = {{640, 0, 1}, {640, 2, 3}, {640, 4, 5}, {64, 0, 5}};
  const MemoryPlan plan = net::plan_memory(buffers);
  check(buffers, plan);
  EXPECT_EQ(plan.bytes, 640u + 64u);
}

TEST(MemoryPlan, NothingNeedsNothing) { EXPECT_EQ(net::plan_memory({}).bytes, 0u); }

}  // namespace
}  // namespace dp::test
