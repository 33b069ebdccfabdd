// Passes gradients from the GPU that computes them to the thread that exchanges them, and the sums
// back.
//
// A *bucket* is a slice of the flat gradient. During backward, an operation in the device's queue
// marks a bucket as final: the device writes the number of the training step into host memory. The
// exchanging thread polls that memory without calling the driver.
//
// On the *host path* the exchange works on host memory: the slice is copied to the host before the
// mark is written, and the sums are copied back. Each direction of the bus has its own queue, so
// copies overlap with computation. On the *device path* the exchange works on the device's memory,
// and nothing is copied here.
//
// Only GPUs need a link: on a CPU the caller of backward notifies the reducer itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.hpp"

namespace dp {

struct BucketSlice {
  std::size_t offset = 0, elements = 0;  // floats in the flat gradient
};

class BucketLink {
 public:
  virtual ~BucketLink() = default;

  // Call before the operations of a training step are enqueued. After this call, is_final() is
  // false for every bucket until the step marks this bucket as final.
  virtual void begin_step(std::uint64_t step) = 0;

  // Operation: the bucket's values are final once all operations enqueued so far have run.
  virtual void bucket_final(std::size_t bucket) = 0;
  // Operation; call it after the last bucket_final(). Operations that are enqueued later wait for
  // all copies to the host. If the step is recorded, this is the recording's last operation.
  virtual void end_backward() = 0;

  // Whether the bucket's values are final. On the host path, they must also be in host memory. Any
  // thread may call this.
  [[nodiscard]] virtual bool is_final(std::size_t bucket) const = 0;

  // Host path: the exchanging thread calls this when the bucket's sums are in host memory. Starts
  // the copy to the device.
  virtual void return_sums(std::size_t bucket) = 0;
  // Operations that are enqueued later wait for the copies of return_sums(), so that they see the
  // sums. This call is not part of a recording of the step. The exchanging thread may make it, too.
  virtual void await_sums() = 0;
};

// device_gradient: the flat gradient on the device. host_gradient: memory of the same length from
// device.allocate_host on the host path, null on the device path. Throws Error(internal) on a CPU.
[[nodiscard]] std::unique_ptr<BucketLink> make_bucket_link(Device& device, float* device_gradient,
                                                           float* host_gradient,
                                                           std::vector<BucketSlice> buckets);

}  // namespace dp
