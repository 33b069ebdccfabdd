// A GPU as a device: one stream for all operations, the handles of cuDNN and cuBLAS on it, one
// scratch buffer. The GPU must be the current device of every thread that calls into it
// (make_current).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/bucket_link.hpp"
#include "kernels/cuda/handles.hpp"
#include "kernels/device.hpp"

namespace dp::cuda {

class Libraries;   // libraries.hpp
class CodecQueue;  // kernels/codecs/cuda_queue.hpp

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceOptions& options);
  ~CudaDevice() override;

  [[nodiscard]] std::string description() const override;
  [[nodiscard]] bool supports(DataType type) const override;
  [[nodiscard]] std::size_t channel_block(std::size_t channels) const override { return channels; }
  void reserve_scratch(std::size_t bytes) override;
  [[nodiscard]] std::byte* scratch() override;
  [[nodiscard]] Memory allocate(std::size_t bytes) override;
  [[nodiscard]] Memory allocate_host(std::size_t bytes) override;
  [[nodiscard]] std::size_t free_bytes() const override;
  void upload(void* device_memory, const void* host_memory, std::size_t bytes) override;
  void download(void* host_memory, const void* device_memory, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void fill_zero(void* device_memory, std::size_t bytes) override;
  void synchronize() override;
  void check() const override;
  void make_current() const override;
  [[nodiscard]] std::unique_ptr<Recording> record(std::function<void()> operations) override;
  [[nodiscard]] std::unique_ptr<TimeMarks> make_time_marks(std::size_t count) override;

  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
  // Waits for all work enqueued on the stream, or for all work enqueued before the event. The wait
  // is visible in waits(); `what` names the work (DeviceWaits::Wait).
  void wait_for(cudaStream_t stream, const char* what,
                DeviceWaits::Kind kind = DeviceWaits::Kind::step) const;
  void wait_for(cudaEvent_t event, const char* what) const;
  [[nodiscard]] Libraries& libraries() { return *libraries_; }
  [[nodiscard]] unsigned multiprocessors() const { return multiprocessors_; }
  [[nodiscard]] bool allows_tf32() const { return allows_tf32_; }
  // The queue shared by all codecs on this device: CodecQueue::of creates it, the codecs own it.
  [[nodiscard]] std::weak_ptr<CodecQueue>& codec_queue() { return codec_queue_; }

  // The minimum size of the scratch memory: operations without a plan may rely on it.
  static constexpr std::size_t kLeastScratchBytes = 4u << 20;

 private:
  [[nodiscard]] Memory owner_of(void* memory, cudaError_t (*release)(void*)) const;

  // The first member: makes the GPU current before anything else is created on it.
  struct Current {
    explicit Current(int index);
    int index;
  } current_;
  std::string name_;
  unsigned multiprocessors_ = 0;
  int capability_ = 0;  // compute capability; 90 means 9.0
  bool allows_tf32_;
  Stream stream_;
  Stream idle_;  // has no work and is never captured; for check()
  std::unique_ptr<Libraries> libraries_;
  Memory scratch_;
  std::size_t scratch_bytes_ =
      kLeastScratchBytes;  // reserved; scratch_ grows to it on its next use
  std::size_t scratch_size_ = 0;
  std::weak_ptr<CodecQueue> codec_queue_;
};

[[nodiscard]] int count_devices(std::string* why_none);
// "NVIDIA driver 580 or later (CUDA 13.0)": the driver that this build needs.
[[nodiscard]] std::string needed_driver();
[[nodiscard]] CudaDevice& as_cuda(Device& device);

[[nodiscard]] std::unique_ptr<BucketLink> make_bucket_link(CudaDevice& device,
                                                           float* device_gradient,
                                                           float* host_gradient,
                                                           std::vector<BucketSlice> buckets);

}  // namespace dp::cuda
