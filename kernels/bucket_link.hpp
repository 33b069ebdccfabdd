// Brings gradients from a GPU that computes them to the thread that exchanges them, and the sums
// back.
//
// A *bucket* is a slice of the flat gradient. During backward, an operation in the queue says that
// a bucket's values are final: the device then writes the step's number into memory of the host,
// and the exchanging thread polls that memory without a call into the driver. On the *host path*
// the exchange works on host memory: the slice is copied down before the mark is written, and the
// sums are copied up again. Each direction of the bus has a queue of its own, so that copies run
// beside the computation. On the *device path* the exchange works on the device's memory, and
// nothing is copied here.
//
// Only GPUs need a link: on a CPU the caller of backward tells the reducer itself.
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

  // Before the operations of a step are enqueued: no bucket of it is final.
  virtual void begin_step(std::uint64_t step) = 0;

  // An operation: the bucket's values are final once all operations enqueued so far have run.
  virtual void bucket_final(std::size_t bucket) = 0;
  // An operation, after the last bucket_final: operations enqueued from here on run after all
  // copies down. (A recording of the step ends with it.)
  virtual void end_backward() = 0;

  // Whether a bucket's values (in host memory on the host path) are final. From any thread.
  [[nodiscard]] virtual bool is_final(std::size_t bucket) const = 0;

  // On the host path, the exchanging thread calls this when the bucket's sums are in host memory.
  // Starts the copy up.
  virtual void return_sums(std::size_t bucket) = 0;
  // Operations enqueued from here on see the sums that were returned. Not part of a recording.
  virtual void await_sums() = 0;
};

// device_gradient: the flat gradient on the device. host_gradient: memory of the same length from
// device.allocate_host on the host path, null on the device path. Error(internal) on a CPU.
[[nodiscard]] std::unique_ptr<BucketLink> make_bucket_link(Device& device, float* device_gradient,
                                                           float* host_gradient,
                                                           std::vector<BucketSlice> buckets);

}  // namespace dp
