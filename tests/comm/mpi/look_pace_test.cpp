// How long the reducer's thread sleeps between looks.
#include "comm/mpi/look_pace.hpp"

#include <gtest/gtest.h>

namespace dp {
namespace {

TEST(LookPace, FollowsTheMessages) {
  LookPace pace;
  EXPECT_EQ(pace.sleep_s(), LookPace::kLeast_s);
  double now_s = 1000.0;
  const auto messages = [&](int count, double gap_s) {
    for (int i = 0; i < count; ++i) pace.moved(now_s += gap_s);
  };
  // 64 KiB at 100 Mbit/s: 5.2 ms apart.
  messages(100, 5.2e-3);
  EXPECT_NEAR(pace.sleep_s(), 5.2e-3 / 4, 1e-6);
  // A fast link; then one that is slower than the longest sleep is good for.
  messages(100, 30e-6);
  EXPECT_EQ(pace.sleep_s(), LookPace::kLeast_s);
  messages(100, 0.2);
  EXPECT_NEAR(pace.sleep_s(), LookPace::kMost_s, 1e-6);
  // One long pause between fast messages does not matter for long.
  messages(100, 0.4e-3);
  messages(1, 10.0);
  messages(30, 0.4e-3);
  EXPECT_LT(pace.sleep_s(), 3 * LookPace::kLeast_s);
}

}  // namespace
}  // namespace dp
