// How tests skip, and how their programs report it. No test passes by returning early: a test that
// does not apply skips by name, with the reason,
//
//     if (on_gpu()) GTEST_SKIP() << "blocks of channels are the CPU's";
//     DP_NEEDS_RANKS(comm, 2);
//
// and a program in which every test skipped ends with an exit code that ctest shows as "Skipped".
#pragma once

#include <gtest/gtest.h>

// Skips the test on all ranks if there are fewer ranks than it needs.
#define DP_NEEDS_RANKS(comm, least)                          \
  if ((comm).size() < (least)) {                             \
    GTEST_SKIP() << "needs " << (least) << " ranks or more"; \
  }                                                          \
  static_assert(true, "asks for a semicolon")

namespace dp::test {

// DpTest.cmake sets this as ctest's SKIP_RETURN_CODE for every test.
inline constexpr int kSkippedExitCode = 77;

// The exit code of a program whose tests have run.
[[nodiscard]] inline int exit_code(bool has_failed) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  if (has_failed) return 1;
  const int skipped = all.skipped_test_count();
  return skipped > 0 && skipped == all.test_to_run_count() ? kSkippedExitCode : 0;
}

}  // namespace dp::test
