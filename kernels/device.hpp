// A device that operations run on, and what all operations share: threads, scratch memory and the
// table of algorithm choices. One Device per rank; operations run one at a time, in order.
//
// On a GPU an operation returns before it has run: it is appended to a *queue*. The host sees its
// result after synchronize(), after download(), or when a BucketLink reports it (bucket_link.hpp).
// On a CPU an operation has run when it returns. Code written for a GPU also works on a CPU.
//
// The host may not be able to access a device's memory: use what allocate() returns only in
// operations, upload() and download().
//
// Throws Error(device) if the requested device does not exist or has too little memory.
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
  int threads = 1;          // CPU threads that operations may use
  bool tune = true;         // choose algorithms by measuring; false: by a fixed rule
  int index = 0;            // which GPU, modulo the number of GPUs
  bool allow_tf32 = false;  // operands of fp32 products may be rounded to TF32 (10 bits)
};

// A sequence of operations that is repeated with the same shapes and the same memory.
class Recording {
 public:
  virtual ~Recording() = default;
  // Enqueues the operations. The values that they read may differ from replay to replay.
  virtual void replay() = 0;
  // Whether replay() only launches what an earlier replay has captured. Any thread that has called
  // Device::make_current() may then replay, unless another thread uses the device at the same time.
  [[nodiscard]] virtual bool is_captured() const { return false; }
};

// Numbered time marks in a queue. Setting a mark again replaces its time.
class TimeMarks {
 public:
  virtual ~TimeMarks() = default;
  // Records the time when all operations enqueued so far have run.
  virtual void mark(std::size_t i) = 0;
  // Seconds from mark `from` to mark `to`; both must have been set. Waits for the later one.
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
  // The waits for this device that are in progress. Any thread may call this.
  [[nodiscard]] DeviceWaits& waits() const { return *waits_; }
  // The same waits, for objects that may outlive the device.
  [[nodiscard]] const std::shared_ptr<DeviceWaits>& shared_waits() const { return waits_; }

  // "AMD EPYC, 2 threads, AVX512-BF16, oneDNN 2.6.3"
  [[nodiscard]] virtual std::string description() const = 0;
  // Whether the arithmetic of a type runs at full speed here (bf16 needs AVX512-BF16 on a CPU).
  [[nodiscard]] virtual bool supports(DataType type) const = 0;
  // The channel block for activations with this many channels (see TensorDesc).
  [[nodiscard]] virtual std::size_t channel_block(std::size_t channels) const = 0;

  // Scratch memory for use within one call; its content is lost between calls. Plans raise its size
  // when they are made. From the first run on, the pointer no longer changes. Aligned to 64 bytes.
  virtual void reserve_scratch(std::size_t bytes) = 0;
  [[nodiscard]] virtual std::byte* scratch() = 0;

  // Long-lived device memory, zeroed and aligned to 64 bytes; freed with the returned handle.
  // Throws Error(device) "out of memory: ..." if there is too little.
  using Memory = std::shared_ptr<std::byte>;
  [[nodiscard]] virtual Memory allocate(std::size_t bytes) = 0;
  // Host memory, zeroed and aligned in the same way. Operations can access it in place (slowly, on
  // a GPU), and transfers to and from it are fastest.
  [[nodiscard]] virtual Memory allocate_host(std::size_t bytes) = 0;
  // Bytes of device memory that are free now.
  [[nodiscard]] virtual std::size_t free_bytes() const = 0;

  // Both copy between host and device after all operations enqueued so far, and return when the
  // copy is complete.
  virtual void upload(void* device_memory, const void* host_memory, std::size_t bytes) = 0;
  virtual void download(void* host_memory, const void* device_memory, std::size_t bytes) = 0;
  // Operation: copies within device memory.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // Operation: sets device memory to zero.
  virtual void fill_zero(void* device_memory, std::size_t bytes) = 0;
  // Waits until all operations have run.
  virtual void synchronize() = 0;

  // Throws Error(device) if the device has failed, for example after a fault in a kernel. Does not
  // wait. A thread that polls memory instead of waiting in a call must call this now and then. Any
  // thread may call it.
  virtual void check() const {}

  // Every thread other than the one that created the device must call this first.
  virtual void make_current() const {}

  // `operations` performs the operations to repeat. On a CPU every replay calls this function. On a
  // GPU only the first replays call it; later replays launch the graph that was captured. The
  // memory that `operations` refers to must outlive the recording.
  [[nodiscard]] virtual std::unique_ptr<Recording> record(std::function<void()> operations) = 0;
  [[nodiscard]] virtual std::unique_ptr<TimeMarks> make_time_marks(std::size_t count) = 0;

 protected:
  explicit Device(const DeviceOptions& options) : options_(options), tuning_(options.tune) {}

 private:
  DeviceOptions options_;
  Tuning tuning_;
  std::shared_ptr<DeviceWaits> waits_ = std::make_shared<DeviceWaits>();
};

// Throws Error(device) if this build or this machine has no such device. This function is in the
// library dp_kernels, because a CPU device needs the libraries that its operations use.
[[nodiscard]] std::unique_ptr<Device> make_device(const DeviceOptions& options);
// Makes a GPU device, whatever options.kind says: for programs that exchange gradients and run no
// operations. Such programs need no device if their gradients are in host memory.
[[nodiscard]] std::unique_ptr<Device> make_gpu(const DeviceOptions& options);

// Some operations wait for a host function that in turn waits for other threads (rank_gather.hpp).
// A program with such operations calls this before anything else that concerns GPUs. Sets these
// environment variables of CUDA unless the user has set them:
//   CUDA_MODULE_LOADING=EAGER         By default the first launch of a kernel loads it. Loading may
//                                     hold a lock of the context and wait for all work on the GPU,
//                                     including the host function. That function waits for a thread
//                                     that needs the same lock to launch a kernel: a deadlock (CUDA
//                                     programming guide, "Lazy loading", "Potential hazards").
//                                     EAGER costs GPU memory and start-up time: all kernels of
//                                     cuDNN and cuBLAS are loaded, if the program opens these
//                                     libraries.
//   CUDA_DEVICE_MAX_CONNECTIONS=32    By default streams share eight hardware queues, and work may
//                                     have to wait behind another stream's host function.
// Libraries may load kernels of their own on first use. Whoever uses them must therefore run every
// operation once before host functions wait (Replica::prepare).
void expect_host_waits();

// Copies a device buffer to the host.
[[nodiscard]] inline std::vector<float> to_host(Device& device, std::span<const float> values) {
  std::vector<float> copy(values.size());
  device.download(copy.data(), values.data(), values.size_bytes());
  return copy;
}

// The number of GPUs this process can use. If there is none, `why_none` (if given) gets the reason
// in a few words, such as "no NVIDIA driver".
[[nodiscard]] int count_gpus(std::string* why_none = nullptr);

}  // namespace dp
