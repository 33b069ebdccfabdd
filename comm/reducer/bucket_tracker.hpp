// Counts the tensors whose gradients are final, and reports when a bucket is complete.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace dp {

class BucketTracker {
 public:
  BucketTracker() = default;  // without tensors
  // bucket_of_tensor[t]: the bucket that holds tensor t.
  explicit BucketTracker(std::vector<std::size_t> bucket_of_tensor)
      : bucket_of_tensor_(std::move(bucket_of_tensor)) {
    for (const std::size_t bucket : bucket_of_tensor_) {
      if (bucket >= tensors_.size()) tensors_.resize(bucket + 1);
      ++tensors_[bucket];
    }
    begin_step();
  }

  [[nodiscard]] std::size_t buckets() const { return tensors_.size(); }

  void begin_step() {
    missing_ = tensors_;
    missing_buckets_ = tensors_.size();
  }
  // Whether every tensor was final in this step.
  [[nodiscard]] bool is_complete() const { return missing_buckets_ == 0; }

  // Calls ready(bucket) if the tensor was the last one that its bucket waited for.
  template <class Ready>
  void tensor_final(std::size_t tensor, const Ready& ready) {
    const std::size_t bucket = bucket_of_tensor_[tensor];
    if (--missing_[bucket] > 0) return;
    --missing_buckets_;
    ready(bucket);
  }

 private:
  std::vector<std::size_t> bucket_of_tensor_, tensors_, missing_;
  std::size_t missing_buckets_ = 0;
};

}  // namespace dp
