#include "kernels/bucket_link.hpp"

#include <atomic>

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/twins.hpp"

namespace dp::cuda {

namespace {

// Tells the host: everything before it in the queue has run. `step` and `mark` are host memory.
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
    if (host_gradient_ == nullptr) return;
    finals_.reserve(buckets_.size());
    for (std::size_t b = 0; b < buckets_.size(); ++b) finals_.emplace_back();
  }

  void begin_step(std::uint64_t step) override { *word(buckets_.size()) = step + 1; }

  void bucket_final(std::size_t bucket) override {
    cudaStream_t stream = device_.stream();
    if (host_gradient_ != nullptr) {
      stream = down_.get();
      DP_CHECK_CUDA(cudaEventRecord(finals_[bucket].get(), device_.stream()));
      DP_CHECK_CUDA(cudaStreamWaitEvent(stream, finals_[bucket].get(), 0));
      const BucketSlice& slice = buckets_[bucket];
      if (slice.elements > 0) {
        DP_CHECK_CUDA(cudaMemcpyAsync(host_gradient_ + slice.offset,
                                      device_gradient_ + slice.offset,
                                      slice.elements * sizeof(float), cudaMemcpyDeviceToHost,
                                      stream));
      }
    }
    launch(mark_kernel, Launch{.blocks = dim3(1), .threads = 1}, stream, word(buckets_.size()),
           word(bucket));
  }

  void end_backward() override {
    if (host_gradient_ == nullptr) return;
    DP_CHECK_CUDA(cudaEventRecord(down_end_.get(), down_.get()));
    DP_CHECK_CUDA(cudaStreamWaitEvent(device_.stream(), down_end_.get(), 0));
  }

  [[nodiscard]] bool is_final(std::size_t bucket) const override {
    const bool is_there = *word(bucket) == *word(buckets_.size());
    std::atomic_thread_fence(std::memory_order_acquire);
    return is_there;
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
  // Each word has a cache line of its own. The last one is the running step's number plus one.
  static constexpr std::size_t kStride = 64;
  [[nodiscard]] volatile std::uint64_t* word(std::size_t i) const {
    return reinterpret_cast<volatile std::uint64_t*>(memory_.get() + i * kStride);
  }

  CudaDevice& device_;
  float* device_gradient_;
  float* host_gradient_;
  std::vector<BucketSlice> buckets_;
  Device::Memory memory_;
  Stream down_, up_;
  Event down_end_, up_end_;
  std::vector<Event> finals_;
};

}  // namespace

std::unique_ptr<BucketLink> make_bucket_link(CudaDevice& device, float* device_gradient,
                                             float* host_gradient,
                                             std::vector<BucketSlice> buckets) {
  return std::make_unique<CudaBucketLink>(device, device_gradient, host_gradient,
                                          std::move(buckets));
}

}  // namespace dp::cuda
