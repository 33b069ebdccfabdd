// Owning wrappers of streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/cuda_check.hpp"

namespace dp::cuda {

// A stream that does not synchronise with the legacy default stream. Kernel blocks on an urgent
// stream overtake blocks of other streams that are waiting for a place on the GPU.
class Stream {
 public:
  enum class Priority { normal, urgent };

  explicit Stream(Priority priority = Priority::normal) {
    int least = 0, greatest = 0;
    DP_CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    DP_CHECK_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                               priority == Priority::urgent ? greatest : least));
  }
  ~Stream() {
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  Stream& operator=(Stream&&) = delete;

  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  // flags: cudaEventDisableTiming for events that only order work, cudaEventDefault for measuring.
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    DP_CHECK_CUDA(cudaEventCreateWithFlags(&event_, flags));
  }
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event& operator=(Event&&) = delete;

  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace dp::cuda
