// The main of tests that run on a device: ends with "skipped" where it is not there.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/support/test_device.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const std::string why = dp::test::why_no_device(); !why.empty()) {
    std::printf("[  SKIPPED ] %s\n", why.c_str());
    return dp::test::kSkipped;
  }
  return RUN_ALL_TESTS();
}
