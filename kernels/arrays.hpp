// Arrays that own the memory which a device's operations use. An operation reads and writes an
// array when it runs, which on a GPU is after the call has returned.
#pragma once

#include <cstddef>
#include <new>
#include <span>

#include "kernels/device.hpp"

namespace dp {

// `count` default values in host memory that operations can reach (Device::allocate_host).
template <class T>
class HostArray {
 public:
  HostArray() = default;
  explicit HostArray(Device& device, std::size_t count = 1)
      : memory_(device.allocate_host(count * sizeof(T))),
        values_(reinterpret_cast<T*>(memory_.get())) {
    for (std::size_t i = 0; i < count; ++i) new (values_ + i) T{};
  }
  [[nodiscard]] T& operator[](std::size_t i) { return values_[i]; }
  [[nodiscard]] T* at(std::size_t i) { return values_ + i; }

 private:
  Device::Memory memory_;
  T* values_ = nullptr;
};

// Floats in the device's memory, initially zero.
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Device& device, std::size_t count)
      : memory_(device.allocate(count * sizeof(float))), count_(count) {}
  [[nodiscard]] std::span<float> values() const {
    return {reinterpret_cast<float*>(memory_.get()), count_};
  }

 private:
  Device::Memory memory_;
  std::size_t count_ = 0;
};

}  // namespace dp
