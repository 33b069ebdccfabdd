// The device that a test runs on. The environment variable DP_TEST_DEVICE names it: "cpu" (the
// default) or "cuda". Tests with DEVICE in CMake run once on each. A test that is only about the
// CPU begins with
//
//     if (on_gpu()) GTEST_SKIP() << "blocks of channels are the CPU's";
//
// This file also provides host memory that operations can read and write in place, because tests
// fill their tensors before they make a device.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.hpp"

namespace dp::test {

[[nodiscard]] bool on_gpu();
// Whether the GPU is cuda_on_cpu, on which large convolutions take minutes.
[[nodiscard]] bool on_fake_gpu();
// Why the test's device cannot be used; empty if it can.
[[nodiscard]] std::string why_no_device();

// A device of the test's kind with these options. synchronize_devices() knows all that exist.
struct TestDeviceEnd {
  void operator()(Device* device) const;
};
using TestDevice = std::unique_ptr<Device, TestDeviceEnd>;
[[nodiscard]] TestDevice make_test_device(DeviceOptions options = {});

// Waits until everything that was enqueued on any of these devices has run.
void synchronize_devices();

// Zeroed memory of the host that operations can use in place, aligned to 64 bytes.
[[nodiscard]] Device::Memory allocate_shared(std::size_t bytes);

// Values in such memory. Reading waits for the devices.
template <class T>
class Shared {
 public:
  explicit Shared(std::span<const T> values) : Shared(values.size()) {
    for (std::size_t i = 0; i < size_; ++i) new (data() + i) T(values[i]);
  }
  explicit Shared(const T& value) : Shared(std::span<const T>(&value, 1)) {}
  Shared() : Shared(T{}) {}

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.get()); }
  [[nodiscard]] std::span<T> span() const { return {data(), size_}; }
  [[nodiscard]] const T& value() const {
    synchronize_devices();
    return *data();
  }
  [[nodiscard]] std::vector<T> values() const {
    synchronize_devices();
    return {data(), data() + size_};
  }

 private:
  explicit Shared(std::size_t size) : size_(size), memory_(allocate_shared(size * sizeof(T))) {}

  std::size_t size_;
  Device::Memory memory_;
};
template <class T>
Shared(const std::vector<T>&) -> Shared<T>;

}  // namespace dp::test
