// Each piece of work once, whatever the number of threads, and the threads of a rank with so many
// cores.
#include "comm/exchange/codec_threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace dp {
namespace {

TEST(CodecThreads, DoEachPieceOnce) {
  for (std::size_t size = 1; size <= CodecThreads::kMost; ++size) {
    CodecThreads threads(size);
    EXPECT_EQ(threads.size(), size);
    for (const std::size_t count : {0u, 1u, 2u, 3u, 4u, 9u, 100u}) {
      std::vector<std::atomic<int>> times(count);
      threads.for_each(count, [&](std::size_t i) { ++times[i]; });
      for (const std::atomic<int>& time : times) EXPECT_EQ(time, 1);
    }
  }
}

// Pieces that wait for each other end only if as many threads take them.
TEST(CodecThreads, WorkAtTheSameTime) {
  CodecThreads threads(CodecThreads::kMost);
  std::atomic<std::size_t> begun = 0;
  threads.for_each(CodecThreads::kMost, [&](std::size_t) {
    ++begun;
    while (begun < CodecThreads::kMost) std::this_thread::yield();
  });
  EXPECT_EQ(begun, CodecThreads::kMost);
}

TEST(CodecThreads, ThrowWhenAllHaveEnded) {
  CodecThreads threads(3);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(threads.for_each(6, [](std::size_t) { throw std::runtime_error("a segment"); }),
                 std::runtime_error);
  }
  std::atomic<int> calls = 0;
  threads.for_each(6, [&](std::size_t) { ++calls; });
  EXPECT_EQ(calls, 6);
}

TEST(CodecThreads, AreAQuarterOfTheCores) {
  EXPECT_EQ(CodecThreads::for_cores(0), 1u);
  EXPECT_EQ(CodecThreads::for_cores(7), 1u);
  EXPECT_EQ(CodecThreads::for_cores(8), 2u);
  EXPECT_EQ(CodecThreads::for_cores(64), CodecThreads::kMost);
  EXPECT_EQ(CodecThreads::on_host_of(1'000'000), 1u);
}

}  // namespace
}  // namespace dp
