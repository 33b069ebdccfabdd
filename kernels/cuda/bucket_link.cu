// The GPU's link: two urgent streams, one for each direction of the bus, connected to the device's
// stream by events. A mark is a kernel with one thread. The kernel writes the number of the
// training step into the bucket's word in host memory.
#include "kernels/bucket_link.hpp"

#include <atomic>

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.cuh"

namespace dp::cuda {

namespace {

// Reports to the host that everything before it in the queue has run. Both words are in host
// memory.
//
// The host may then read the results of earlier work. Earlier copies to the host in this queue have
// arrived in host memory before the kernel starts. Data written by earlier kernels is in device
// memory when the kernels end, and visible to later operations of all queues. The fence orders the
// mark after these copies and writes.
__global__ void mark_kernel(const volatile std::uint64_t* step, volatile std::uint64_t* mark) {
  __threadfence_system();
  *mark = *step;
}

class CudaBucketLink final : public BucketLink {
 public:
  CudaBucketLink(CudaDevice& device, float* device_gradient, float* host_gradient,
                 std::vector<BucketSlice> buckets)
      : device_(device),
        device_gradient_(device_gradient),
        host_gradient_(host_gradient),
        buckets_(std::move(buckets)),
        memory_(device.allocate_host((buckets_.size() + 1) * kStride)) {
    // Before the first training step no bucket is final, because no mark equals this number.
    store(step_word(), ~std::uint64_t{0});
  }

  // Waits, because pending marks and copies use memory that is freed with this object or soon after
  // it.
  ~CudaBucketLink() override {
    const DeviceWaits::Wait wait(device_.waits(), "the last copies of gradients");
    static_cast<void>(cudaStreamSynchronize(down_.get()));
    static_cast<void>(cudaStreamSynchronize(up_.get()));
    static_cast<void>(cudaStreamSynchronize(device_.stream()));
  }

  // The host may change the step word now, because the GPU no longer reads it for the previous
  // training step: the exchanging thread has seen every bucket of that step final.
  void begin_step(std::uint64_t step) override { store(step_word(), step + 1); }

  void bucket_final(std::size_t bucket) override {
    // During a recording this makes the copy queue a branch of the graph, and end_backward() joins
    // it. Backward thus continues while the copy and the mark travel over the bus. One event is
    // enough for all buckets, because a wait refers to the latest record at the time of enqueueing.
    DP_CHECK_CUDA(cudaEventRecord(final_.get(), device_.stream()));
    DP_CHECK_CUDA(cudaStreamWaitEvent(down_.get(), final_.get(), 0));
    has_branch_ = true;
    const BucketSlice& slice = buckets_[bucket];
    if (host_gradient_ != nullptr && slice.elements > 0) {
      DP_CHECK_CUDA(cudaMemcpyAsync(host_gradient_ + slice.offset, device_gradient_ + slice.offset,
                                    slice.elements * sizeof(float), cudaMemcpyDeviceToHost,
                                    down_.get()));
    }
    launch(mark_kernel, Launch{.threads = 1}, down_.get(), step_word(), word(bucket));
  }

  void end_backward() override {
    // If no bucket has become final since the last call, there is nothing to join. A recording must
    // not wait for a queue that takes no part in the recording.
    if (!has_branch_) return;
    has_branch_ = false;
    DP_CHECK_CUDA(cudaEventRecord(down_end_.get(), down_.get()));
    DP_CHECK_CUDA(cudaStreamWaitEvent(device_.stream(), down_end_.get(), 0));
  }

  [[nodiscard]] bool is_final(std::size_t bucket) const override {
    return load(word(bucket)) == load(step_word());
  }

  void return_sums(std::size_t bucket) override {
    const BucketSlice& slice = buckets_[bucket];
    if (host_gradient_ == nullptr || slice.elements == 0) return;
    device_.make_current();
    DP_CHECK_CUDA(cudaMemcpyAsync(device_gradient_ + slice.offset, host_gradient_ + slice.offset,
                                  slice.elements * sizeof(float), cudaMemcpyHostToDevice,
                                  up_.get()));
  }

  void await_sums() override {
    if (host_gradient_ == nullptr) return;
    DP_CHECK_CUDA(cudaEventRecord(up_end_.get(), up_.get()));
    DP_CHECK_CUDA(cudaStreamWaitEvent(device_.stream(), up_end_.get(), 0));
  }

 private:
  // Each word has its own cache line. The last word is the number of the current training step plus
  // one.
  static constexpr std::size_t kStride = 64;
  [[nodiscard]] std::uint64_t* word(std::size_t i) const {
    return reinterpret_cast<std::uint64_t*>(memory_.get() + i * kStride);
  }
  [[nodiscard]] std::uint64_t* step_word() const { return word(buckets_.size()); }
  static std::uint64_t load(std::uint64_t* at) {
    return std::atomic_ref(*at).load(std::memory_order_acquire);
  }
  static void store(std::uint64_t* at, std::uint64_t value) {
    std::atomic_ref(*at).store(value, std::memory_order_release);
  }

  CudaDevice& device_;
  float* device_gradient_;
  float* host_gradient_;
  std::vector<BucketSlice> buckets_;
  Device::Memory memory_;
  // The streams are urgent, so that an early bucket's copy and mark do not wait until all backward
  // kernels enqueued meanwhile have been scheduled.
  Stream down_{Stream::Priority::urgent}, up_{Stream::Priority::urgent};
  Event final_, down_end_, up_end_;
  bool has_branch_ = false;
};

}  // namespace

std::unique_ptr<BucketLink> make_bucket_link(CudaDevice& device, float* device_gradient,
                                             float* host_gradient,
                                             std::vector<BucketSlice> buckets) {
  return std::make_unique<CudaBucketLink>(device, device_gradient, host_gradient,
                                          std::move(buckets));
}

}  // namespace dp::cuda
