// While the wire works, the reducer's thread sleeps.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/support/skipped.hpp"

#include "comm/reducer/reducer.hpp"

namespace dp {
namespace {

// The processor time of all threads of this process.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A sanitizer's checks take longer than what they check. Waiting without sleep would be a share
// of 1.
#if defined(__SANITIZE_THREAD__)
constexpr double kMostShare = 0.3;
#elif defined(__SANITIZE_ADDRESS__)
constexpr double kMostShare = 0.15;
#else
constexpr double kMostShare = 0.05;
#endif

// Under 5 % of a core in a bare exchange over 100 Mbit/s. Processor time, so that other processes
// matter little; the best of a few, since what they leave in the caches still does.
TEST(Reducer, WaitingForTheWireTakesLittleProcessor) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  std::vector<float> gradient(1'000'000, 1.0f);
  const std::vector<TensorSlot> tensors = {{0, 1000, 1000, false}};
  Reducer reducer(comm, gradient, plan_buckets(tensors, {}), {.throttle_bits_per_s = 100e6});
  double least = 1.0;
  for (std::uint64_t step = 0; step < 12; ++step) {
    reducer.run([](Communicator& c) { c.barrier(); });
    const double cpu_start_s = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    reducer.begin_step(step);
    reducer.bucket_ready(0);
    EXPECT_TRUE(reducer.wait_step().finite);
    const double wall_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    least = std::min(least, (cpu_seconds() - cpu_start_s) / wall_s);
  }
  EXPECT_LT(least, kMostShare);
}

// A rank that trains alone between two exchanges is waited for as long as it comes on, beyond what
// ranks that only answer are given.
TEST(Reducer, WaitsForARankThatWorksAloneAndComesOn) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  constexpr double kTimeout_s = 1.0;
  comm.set_patience({.with_living = 0.8, .with_busy = 3.0});
  std::vector<float> gradient(1000, 1.0f);
  const std::vector<TensorSlot> tensors = {{0, 10, 100, false}};
  Reducer reducer(comm, gradient, plan_buckets(tensors, {}), {.comm_timeout_s = kTimeout_s});
  for (std::uint64_t round = 0; round < 2; ++round) {
    if (comm.rank() == 1) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1600);
      while (std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        reducer.note_work();
      }
    }
    reducer.begin_step(round);
    reducer.bucket_ready(0);
    EXPECT_TRUE(reducer.wait_step().finite);
    if (round == 0) reducer.run([](Communicator& c) { c.barrier(); });
  }
}

}  // namespace
}  // namespace dp
