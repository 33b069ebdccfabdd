// The queue shared by all codecs of a GPU: a stream, the buffers that their kernels need, and the
// operations of segment_memory.hpp. Every call waits for its kernels before it returns, so calls of
// different codecs never overlap. One thread at a time uses the queue: the thread that exchanges
// gradients. The GPU must be that thread's current device.
//
// This queue and the device's other queues do not wait for each other: what other queues write must
// be complete before a call reads it.
//
// A call consists of begin(), kernels on stream(), and finish(). Kernels report their findings to
// the host in a *report* in host memory; finish() waits for the kernels and then reads it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/codecs/segment_memory.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/handles.hpp"

namespace dp::cuda {

class CodecQueue final : public SegmentMemory {
 public:
  // Written by kernels. All kernels that write a field write the same value, so their order does
  // not matter.
  struct Report {
    std::uint32_t is_not_finite;
    std::uint32_t is_damaged;    // a payload that no encoder writes
    std::uint32_t counter;       // of finish_with_counters()
    std::uint32_t is_quantised;  // the segment was quantised with a likely step (cuda_ecq.cu)
  };
  // Arguments shared by the kernels of a call. Two of them point to device memory:
  // `not_finite_call` to the number of the last call with a segment that was not finite, and
  // `maxima` to the blocks' largest magnitudes.
  struct Call {
    Report* report;
    std::uint64_t number;
    std::uint64_t* not_finite_call;
    std::uint32_t* maxima;
  };

  explicit CodecQueue(CudaDevice& device);
  // The device's queue. The first codec creates it; the queue is destroyed with the last codec.
  [[nodiscard]] static std::shared_ptr<CodecQueue> of(CudaDevice& device);

  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
  [[nodiscard]] Call begin(std::size_t blocks) const;
  [[nodiscard]] Report finish() const;
  // Two numbers in device memory for the kernels of one call, which are 0 when they begin, and a
  // finish() that reports the first one.
  [[nodiscard]] std::uint32_t* new_counters() const;
  [[nodiscard]] Report finish_with_counters() const;
  // Makes room for segments of `blocks` blocks and for `staging_bytes` bytes of staging(). A call
  // that needs more room allocates it, which waits for all work on the GPU.
  void reserve(std::size_t blocks, std::size_t staging_bytes) const;
  // Host memory that the GPU can access, aligned to 64 bytes. Valid until the next call of
  // staging() and of the operations of SegmentMemory.
  [[nodiscard]] std::byte* staging(std::size_t bytes) const;

  [[nodiscard]] std::shared_ptr<float> allocate(std::size_t n) const override;
  [[nodiscard]] double squares_of_sum(const float* values, const float* others,
                                      std::size_t n) const override;
  [[nodiscard]] double squares_of_difference(const float* values, const float* others,
                                             std::size_t n) const override;
  [[nodiscard]] bool is_finite(const float* values, std::size_t n) const override;
  void to_host(const float* from, float* to, std::size_t n) const override;
  void add(const float* values, float* sums, std::size_t n) const override;
  void scale(float factor, float* values, std::size_t n) const override;
  void fill(float value, float* values, std::size_t n) const override;
  void add_momentum(const Momentum& factors, float* gradient, float* velocity,
                    std::size_t n) const override;
  void clear(Where where, const float* at, float* values, std::size_t n) const override;
  std::size_t sample(const float* values, const float* others, std::size_t n, std::size_t run,
                     std::size_t stride, float* to) const override;
  void count_magnitudes(const float* values, const float* others, std::size_t n,
                        std::span<std::int64_t, kMagnitudes> counts) const override;

 private:
  struct Free {
    void operator()(std::byte* p) const { static_cast<void>(cudaFree(p)); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static Memory allocate_bytes(std::size_t bytes);
  double squares(const float* values, const float* others, float sign, std::size_t n) const;

  void grow(std::size_t blocks) const;

  CudaDevice& device_;
  // Urgent, so that its kernels overtake the backward pass: they are short, and a rank waits for
  // each of them.
  Stream stream_{Stream::Priority::urgent};
  Device::Memory report_;
  Memory fixed_;  // a call's number and the counter
  // Initially sized for segments of 16384 blocks; grows with the longest segment.
  mutable Memory maxima_;
  mutable std::size_t maxima_size_ = 0;
  mutable std::uint64_t calls_ = 0;
  mutable Device::Memory staging_;
  mutable std::size_t staging_size_ = 0;
};

}  // namespace dp::cuda
