#include "tests/support/test_device.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace dp::test {

namespace {

std::vector<Device*>& living() {
  static std::vector<Device*> devices;
  return devices;
}

}  // namespace

bool on_gpu() {
  const char* name = std::getenv("DP_TEST_DEVICE");
  return name != nullptr && std::string_view(name) == "cuda";
}

bool on_fake_gpu() {
  return on_gpu() && make_test_device({.tune = false})->description().starts_with("cuda_on_cpu");
}

std::string why_no_device() {
  std::string why;
  if (on_gpu() && count_gpus(&why) == 0) return why.empty() ? "no GPU" : why;
  return {};
}

void TestDeviceEnd::operator()(Device* device) const {
  std::erase(living(), device);
  delete device;
}

TestDevice make_test_device(DeviceOptions options) {
  options.kind = on_gpu() ? DeviceKind::cuda : DeviceKind::cpu;
  TestDevice device(make_device(options).release());
  living().push_back(device.get());
  return device;
}

void synchronize_devices() {
  for (Device* device : living()) device->synchronize();
}

Device::Memory allocate_shared(std::size_t bytes) {
  static const TestDevice device = make_test_device({.tune = false});
  return device->allocate_host(bytes);
}

}  // namespace dp::test
