// Tests the message for a driver older than the CUDA of this build: the real runtime with a made-up
// driver (old_driver.cpp, found through LD_LIBRARY_PATH).
#include <gtest/gtest.h>

#include <fstream>

#include "kernels/base/error.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/device.hpp"
#include "kernels/gpu_needs.hpp"

namespace dp {
namespace {

TEST(OldDriver, IsToldWhichOneIsNeeded) {
  std::string release;
  std::ifstream("/sys/module/nvidia/version") >> release;
  const std::string found = release.empty() ? "one for CUDA 12.2" : release + " (CUDA 12.2)";
  const std::string said =
      fmt::format("this build needs an {}; found {}", cuda::needed_driver(), found);
  std::string why;
  EXPECT_EQ(count_gpus(&why), 0);
  EXPECT_EQ(why, said);
  try {
    static_cast<void>(make_device({.kind = DeviceKind::cuda}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
  }
}

// The releases of the driver and of CUDA: the two numbers that users can look up.
TEST(NeededDriver, IsNamedByVersionToo) {
  const std::string driver = cuda::needed_driver();
  unsigned release = 0, major = 0, minor = 0;
  ASSERT_EQ(std::sscanf(driver.c_str(), "NVIDIA driver %u or later (CUDA %u.%u)", &release, &major,
                        &minor),
            3)
      << driver;
  EXPECT_EQ(release, major == 12 ? 525u : 580u);
  EXPECT_NE(gpu_needs().find(driver), std::string::npos) << gpu_needs();
}

}  // namespace
}  // namespace dp
