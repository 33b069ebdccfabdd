// A device that operations run on, with what all of them share: threads, scratch memory and the
// table of algorithm choices. One Device per rank; operations run on it one at a time, in order.
//
// Fails with Error(device) when the asked kind is not there.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "kernels/tensor.hpp"
#include "kernels/tuning.hpp"

namespace dp {

struct DeviceOptions {
  DeviceKind kind = DeviceKind::cpu;
  int threads = 1;   // processor threads that operations may use
  bool tune = true;  // measure algorithms; false: a fixed rule
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] DeviceKind kind() const { return options_.kind; }
  [[nodiscard]] int threads() const { return options_.threads; }
  [[nodiscard]] Tuning& tuning() { return tuning_; }

  // "AMD EPYC, 2 threads, AVX512-BF16, oneDNN 2.6.3"
  [[nodiscard]] virtual std::string description() const = 0;
  // Whether the arithmetic of a type runs at full speed here (bf16 needs AVX512-BF16 on a CPU).
  [[nodiscard]] virtual bool supports(DataType type) const = 0;
  // The channel block in which activations of that many channels are kept (see TensorDesc).
  [[nodiscard]] virtual std::size_t channel_block(std::size_t channels) const = 0;

  // Memory that operations use during a call and that holds nothing between calls. Planning raises
  // the size; the pointer is stable from the first run on. Aligned to 64 bytes.
  virtual void reserve_scratch(std::size_t bytes) = 0;
  [[nodiscard]] virtual std::byte* scratch() = 0;

  // Long-lived memory, zeroed, aligned to 64 bytes; freed with the returned handle.
  using Memory = std::shared_ptr<std::byte>;
  [[nodiscard]] virtual Memory allocate(std::size_t bytes) = 0;

 protected:
  explicit Device(const DeviceOptions& options) : options_(options), tuning_(options.tune) {}

 private:
  DeviceOptions options_;
  Tuning tuning_;
};

// Throws Error(device) when this build or this machine has no such device.
[[nodiscard]] std::unique_ptr<Device> make_device(const DeviceOptions& options);

}  // namespace dp
