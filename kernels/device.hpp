// A device that operations run on, with what all of them share: threads, scratch memory and the
// table of algorithm choices. One Device per rank; operations run on it one at a time, in order.
//
// On a GPU an operation returns before it has run: operations form a *queue*. The host sees their
// results after synchronize(), after a download(), or where it has been told through a BucketLink
// (bucket_link.hpp). On a CPU an operation has run when it returns. Code that is written for the
// first works for both.
//
// Memory of a device is not always memory that the host can touch: what allocate() returns is for
// operations, upload() and download() alone.
//
// Fails with Error(device) when the asked kind is not there or its memory does not suffice.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device_waits.hpp"
#include "kernels/tensor.hpp"
#include "kernels/tuning.hpp"

namespace dp {

struct DeviceOptions {
  DeviceKind kind = DeviceKind::cpu;
  int threads = 1;          // processor threads that operations may use
  bool tune = true;         // measure algorithms; false: a fixed rule
  int index = 0;            // which GPU, modulo those that are there
  bool allow_tf32 = false;  // fp32 products may be rounded to TF32 (10 bits) on their way in
};

// Operations that run again and again with the same shapes and the same memory.
class Recording {
 public:
  virtual ~Recording() = default;
  // Enqueues them. What they read may have changed since the last time.
  virtual void replay() = 0;
};

// Moments in a queue, by number. Marking a number again replaces its moment.
class TimeMarks {
 public:
  virtual ~TimeMarks() = default;
  // The moment when all operations enqueued so far have run.
  virtual void mark(std::size_t i) = 0;
  // From moment `from` to moment `to`, both marked before; waits for the later one.
  [[nodiscard]] virtual double seconds(std::size_t from, std::size_t to) const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] DeviceKind kind() const { return options_.kind; }
  [[nodiscard]] int threads() const { return options_.threads; }
  [[nodiscard]] Tuning& tuning() { return tuning_; }
  // The waits for this device that go on. From any thread.
  [[nodiscard]] DeviceWaits& waits() const { return *waits_; }
  // For what may be released after the device.
  [[nodiscard]] const std::shared_ptr<DeviceWaits>& shared_waits() const { return waits_; }

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

  // Long-lived memory of the device, zeroed, aligned to 64 bytes; freed with the returned handle.
  // Error(device) "out of memory: ..." where there is too little.
  using Memory = std::shared_ptr<std::byte>;
  [[nodiscard]] virtual Memory allocate(std::size_t bytes) = 0;
  // Memory of the host, zeroed and aligned in the same way, that operations can read and write in
  // place (slowly, on a GPU) and that transfers fastest.
  [[nodiscard]] virtual Memory allocate_host(std::size_t bytes) = 0;
  // Bytes of the device that are free now.
  [[nodiscard]] virtual std::size_t free_bytes() const = 0;

  // Copies between host and device, behind all operations enqueued so far; has ended on return.
  virtual void upload(void* device_memory, const void* host_memory, std::size_t bytes) = 0;
  virtual void download(void* host_memory, const void* device_memory, std::size_t bytes) = 0;
  // An operation: copies within memory of the device.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // An operation: sets memory of the device to zero.
  virtual void fill_zero(void* device_memory, std::size_t bytes) = 0;
  // Waits until all operations have run.
  virtual void synchronize() = 0;

  // Throws Error(device) if the device has failed, as after a fault in a kernel, without waiting.
  // Whoever polls memory instead of waiting in a call asks it now and then. From any thread.
  virtual void check() const {}

  // Every other thread than the one that made the device calls this before anything else.
  virtual void make_current() const {}

  // `operations` does what a replay has to do. On a CPU every replay calls it; on a GPU it
  // enqueues, and only the first replays call it, since later ones launch the graph that was
  // captured. The memory that it refers to must outlive the recording.
  [[nodiscard]] virtual std::unique_ptr<Recording> record(std::function<void()> operations) = 0;
  [[nodiscard]] virtual std::unique_ptr<TimeMarks> make_time_marks(std::size_t count) = 0;

 protected:
  explicit Device(const DeviceOptions& options) : options_(options), tuning_(options.tune) {}

 private:
  DeviceOptions options_;
  Tuning tuning_;
  std::shared_ptr<DeviceWaits> waits_ = std::make_shared<DeviceWaits>();
};

// Throws Error(device) when this build or this machine has no such device. This one is part of
// dp_kernels, since the CPU as a device needs the libraries of its operations.
[[nodiscard]] std::unique_ptr<Device> make_device(const DeviceOptions& options);
// A GPU's device, whatever options.kind says: for programs that exchange gradients and run no
// operations. They need no device for gradients in host memory.
[[nodiscard]] std::unique_ptr<Device> make_gpu(const DeviceOptions& options);

// Call it before everything else that has to do with GPUs if operations will wait for functions of
// the host which other threads keep waiting (rank_gather.hpp). Sets environment variables of CUDA,
// but for those that the user has set:
//   CUDA_MODULE_LOADING=EAGER         By default a kernel is loaded by its first launch. That may
//                                     hold a lock of the context and wait for all that runs on the
//                                     GPU; which waits for the function; which waits for a thread
//                                     that wants to launch a kernel and so needs the lock (CUDA
//                                     programming guide, "Lazy loading", "Potential hazards").
//                                     Costs memory of the GPU and time at the start: all kernels of
//                                     cuDNN and cuBLAS are loaded that the program opens.
//   CUDA_DEVICE_MAX_CONNECTIONS=32    By default streams share eight queues of the hardware, and
//                                     work may wait behind another stream's function of the host.
// Libraries may load kernels of their own when they first need them. So whoever uses them runs
// every operation once before functions of the host wait (Replica::prepare).
void expect_host_waits();

// The values of a buffer of the device.
[[nodiscard]] inline std::vector<float> to_host(Device& device, std::span<const float> values) {
  std::vector<float> copy(values.size());
  device.download(copy.data(), values.data(), values.size_bytes());
  return copy;
}

// How many GPUs this process can use. Where none: `why_none` (if given) says why in a few words,
// such as "no NVIDIA driver".
[[nodiscard]] int count_gpus(std::string* why_none = nullptr);

}  // namespace dp
