// main() for tests that run in one process. It ends as "skipped" if the test's device is missing or
// if every test skipped; GoogleTest's own main would report both as "passed".
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/support/skipped.hpp"

#ifdef DP_TEST_ON_DEVICE
#include "tests/support/test_device.hpp"
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
#ifdef DP_TEST_ON_DEVICE
  if (const std::string why = dp::test::why_no_device(); !why.empty()) {
    std::printf("[  SKIPPED ] %s\n", why.c_str());
    return dp::test::kSkippedExitCode;
  }
#endif
  return dp::test::exit_code(RUN_ALL_TESTS() != 0);
}
