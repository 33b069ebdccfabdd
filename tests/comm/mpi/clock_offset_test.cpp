#include "comm/mpi/clock_offset.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace dp {
namespace {

std::int64_t true_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The ranks of a test share one clock, which each reads as one that was started at another time and
// runs at another speed.
struct FalseClock {
  std::int64_t shift_ns = 0;
  double speed = 1.0;
  std::int64_t start_ns = true_ns();
  [[nodiscard]] std::int64_t of(std::int64_t moment_ns) const {
    const auto since_ns = static_cast<double>(moment_ns - start_ns);
    return moment_ns + shift_ns + static_cast<std::int64_t>((speed - 1.0) * since_ns);
  }
};

FalseClock clock_of(int rank) {
  const double r = rank;
  return {.shift_ns = rank * 3'600'000'000'000 * (rank % 2 == 0 ? 1 : -1), .speed = 1.0 + 5e-5 * r};
}

TEST(ClockOffset, IsFoundWithinItsError) {
  Communicator comm;
  const FalseClock clock = {.shift_ns = clock_of(comm.rank()).shift_ns};
  const ClockReading reading = read_clock_offset(comm, [&] { return clock.of(true_ns()); });
  if (comm.rank() == 0) {
    EXPECT_EQ(reading.offset_ns, 0);
    EXPECT_EQ(reading.error_ns, 0);
    return;
  }
  EXPECT_GT(reading.error_ns, 0);
  EXPECT_LE(std::abs(reading.offset_ns - clock.shift_ns), reading.error_ns);
}

TEST(ClockOffset, DriftIsFollowedBetweenTwoReadings) {
  Communicator comm;
  const FalseClock mine = clock_of(comm.rank()), zero = clock_of(0);
  const auto read = [&] { return read_clock_offset(comm, [&] { return mine.of(true_ns()); }); };
  const ClockReading first = read();
  const std::int64_t between_ns = true_ns() + 50'000'000;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const ClockReading last = read();
  const ClockLine line(first, last);
  // In between the line is as good as its ends; twice that, as a reading that took longer than
  // the time between the two may be held to be drift.
  const std::int64_t error_ns = 2 * std::max(first.error_ns, last.error_ns) + 10;
  EXPECT_LE(std::abs(line.to_rank_0(mine.of(between_ns)) - zero.of(between_ns)), error_ns);
}

TEST(ClockLine, KeepsTheOrderOfMoments) {
  // The readings contradict each other: they were made at almost the same moment.
  const ClockLine line({.at_ns = 1000, .offset_ns = 0, .error_ns = 900},
                       {.at_ns = 1010, .offset_ns = 800, .error_ns = 900});
  for (std::int64_t at = 0; at < 10'000; ++at) {
    EXPECT_LE(line.to_rank_0(at), line.to_rank_0(at + 1));
  }
  const ClockLine same({.at_ns = 7, .offset_ns = 5, .error_ns = 1},
                       {.at_ns = 7, .offset_ns = 5, .error_ns = 1});
  EXPECT_EQ(same.to_rank_0(105), 100);
}

TEST(ClockLine, Interpolates) {
  const ClockLine line({.at_ns = 1'000'000, .offset_ns = 100, .error_ns = 1},
                       {.at_ns = 3'000'000, .offset_ns = 300, .error_ns = 1});
  EXPECT_EQ(line.to_rank_0(1'000'000), 999'900);
  EXPECT_EQ(line.to_rank_0(2'000'000), 1'999'800);
  EXPECT_EQ(line.to_rank_0(3'000'000), 2'999'700);
}

}  // namespace
}  // namespace dp
