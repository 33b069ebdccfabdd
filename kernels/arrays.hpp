// Memory for operations, which read and write it when they run.
#pragma once

#include <cstddef>
#include <new>
#include <span>

#include "kernels/device.hpp"

namespace dp {

// Structs in memory of the host.
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

// Floats of the device, which start at zero.
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
