#include "kernels/device_waits.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.hpp"

namespace dp {
namespace {

TEST(DeviceWaits, NameTheOldest) {
  DeviceWaits waits;
  EXPECT_FALSE(waits.oldest(DeviceWaits::Kind::step));
  auto first = std::make_unique<DeviceWaits::Wait>(waits, "a copy");
  const auto number = waits.oldest(DeviceWaits::Kind::step)->number;
  const DeviceWaits::Wait second(waits, "a kernel");
  EXPECT_STREQ(waits.oldest(DeviceWaits::Kind::step)->what, "a copy");
  EXPECT_EQ(waits.oldest(DeviceWaits::Kind::step)->number, number);
  first.reset();
  EXPECT_STREQ(waits.oldest(DeviceWaits::Kind::step)->what, "a kernel");
  EXPECT_NE(waits.oldest(DeviceWaits::Kind::step)->number, number);
}

TEST(DeviceWaits, ADeviceThatWaitsForTheHostKeepsNobodyWaiting) {
  DeviceWaits waits;
  const DeviceWaits::Wait wait(waits, "a copy");
  EXPECT_FALSE(waits.oldest(DeviceWaits::Kind::prompt));
  {
    const DeviceWaits::HostFunction one(waits), other(waits);
    EXPECT_FALSE(waits.oldest(DeviceWaits::Kind::step));
  }
  EXPECT_TRUE(waits.oldest(DeviceWaits::Kind::step));
}

TEST(DeviceWaits, MoreThanThereIsRoomFor) {
  DeviceWaits waits;
  std::vector<std::unique_ptr<DeviceWaits::Wait>> many;
  for (int i = 0; i < 20; ++i) many.push_back(std::make_unique<DeviceWaits::Wait>(waits, "a copy"));
  many.clear();
  EXPECT_FALSE(waits.oldest(DeviceWaits::Kind::step));
}

TEST(ExpectHostWaits, KeepsWhatTheUserHasSet) {
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  expect_host_waits();
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "LAZY");
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  unsetenv("CUDA_MODULE_LOADING");
  expect_host_waits();
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
}

}  // namespace
}  // namespace dp
