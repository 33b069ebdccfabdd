// The device that a test runs on: the environment's DP_TEST_DEVICE, "cpu" (the default) or "cuda".
// Tests that say DEVICE in CMake run once for each; what is about the CPU alone asks first:
//
//     if (on_gpu()) GTEST_SKIP() << "blocks of channels are the CPU's";
//
// Host memory that operations read and write in place comes from here as well, since tests fill
// their tensors before they make a device.
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
// Whether that GPU is cuda_on_cpu, on which large convolutions take minutes.
[[nodiscard]] bool on_fake_gpu();
// Why the test's device cannot be used; empty where it can.
[[nodiscard]] std::string why_no_device();

// The asked device of the test's kind. Those that live are known to synchronize_devices().
struct TestDeviceEnd {
  void operator()(Device* device) const;
};
using TestDevice = std::unique_ptr<Device, TestDeviceEnd>;
[[nodiscard]] TestDevice make_test_device(DeviceOptions options = {});

// Waits until everything has run that was enqueued on any of them.
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
