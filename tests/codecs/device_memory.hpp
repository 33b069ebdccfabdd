// Helpers for tests of what works on a device's memory: the device, and arrays in its memory and in
// memory of the host that it reaches, with marks before and behind that tell of stray writes.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.hpp"

namespace dp::testing_support {

// `size` things of type T in device memory, or in host memory that the device reaches, beginning
// `misalignment` bytes behind a multiple of 64.
template <class T>
class DeviceArray {
 public:
  enum class Place { device, host };

  DeviceArray(Device& device, std::size_t size, std::size_t misalignment = 0,
              Place place = Place::device)
      : DeviceArray(device, size, {}, misalignment, place) {}
  DeviceArray(Device& device, std::span<const T> values, std::size_t misalignment = 0,
              Place place = Place::device)
      : DeviceArray(device, values.size(), values, misalignment, place) {}

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.get() + begin_); }
  [[nodiscard]] std::span<T> span() const { return {data(), size_}; }
  void set(std::span<const T> values) { write(begin_, std::as_bytes(values)); }
  // Fails the test where something was written beside the array.
  [[nodiscard]] std::vector<T> get() const {
    std::vector<std::byte> all(bytes_);
    if (place_ == Place::device) {
      device_->download(all.data(), memory_.get(), bytes_);
    } else {
      device_->synchronize();
      std::memcpy(all.data(), memory_.get(), bytes_);
    }
    std::vector<T> values(size_);
    const std::size_t end = begin_ + size_ * sizeof(T);
    if (size_ > 0) std::memcpy(values.data(), all.data() + begin_, size_ * sizeof(T));
    for (std::size_t i = 0; i < bytes_; ++i) {
      if ((i >= begin_ && i < end) || all[i] == kMark) continue;
      ADD_FAILURE() << "written beside an array, at byte " << i << " of [" << begin_ << ", " << end
                    << ")";
      break;
    }
    return values;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xA5};

  // Marks everywhere, and the values if there are any. All in one piece: a test has thousands of
  // small arrays, and on cuda_on_cpu each upload waits for another thread.
  DeviceArray(Device& device, std::size_t size, std::span<const T> values, std::size_t misalignment,
              Place place)
      : device_(&device),
        size_(size),
        begin_(kGuard + misalignment),
        bytes_(begin_ + size * sizeof(T) + kGuard),
        place_(place),
        memory_(place == Place::device ? device.allocate(bytes_) : device.allocate_host(bytes_)) {
    std::vector<std::byte> all(bytes_, kMark);
    if (!values.empty()) std::memcpy(all.data() + begin_, values.data(), values.size_bytes());
    write(0, all);
  }
  void write(std::size_t at, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    if (place_ == Place::device) {
      device_->upload(memory_.get() + at, bytes.data(), bytes.size());
    } else {
      device_->synchronize();
      std::memcpy(memory_.get() + at, bytes.data(), bytes.size());
    }
  }

  Device* device_;
  std::size_t size_, begin_, bytes_;
  Place place_;
  Device::Memory memory_;
};

// The first place where two arrays differ in their bits; their length if nowhere. NaN is NaN: which
// of them an addition gives is the device's choice.
inline std::size_t first_difference(std::span<const float> a, std::span<const float> b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != a[i] && b[i] != b[i]) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return i;
  }
  return a.size();
}

}  // namespace dp::testing_support
