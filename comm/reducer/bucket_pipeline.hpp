// Drives the buckets of a step through their exchanges: in order, several at a time, with a few
// sets of buffers.
//
// Every bucket goes through the same states:
//     posted     it has a set of message buffers, and its receives are posted. As many buckets are
//                posted ahead as there are sets, so that no message of a faster rank has to wait
//                for its buffer.
//     started    its values and the values of all buckets before it are final (is_final): the
//                exchange runs on this rank
//     delivered  its sum is in place
//     done       its transfers have ended too; the set goes to the next bucket
// Buckets start in their order, which is the same on all ranks. They may reach the later states in
// any order. next_delivered() reports the sums in the order of the buckets.
//
// The owner calls look() repeatedly; nothing here waits, sleeps or measures. One thread uses a
// pipeline. Nothing is allocated in a step. Failures come from the exchanges (exchange.hpp); the
// pipeline cannot continue after a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/exchange/exchange.hpp"

namespace dp {

struct PipelineHooks {
  // Whether the bucket's values are final. Called for the oldest bucket that has not started.
  std::function<bool(std::size_t bucket)> is_final;
  // Called when the bucket's values are ready to be exchanged; its exchange starts after this call.
  std::function<void(std::size_t bucket)> starts = {};
  // Called when the bucket's sum is in place: once for every bucket, in any order.
  std::function<void(std::size_t bucket)> delivered = {};
};

class BucketPipeline {
 public:
  // At most `in_flight` buckets are posted and not done. `device` needs access to the buffers;
  // null: only the host does.
  BucketPipeline(std::size_t buckets, std::size_t in_flight, Device* device, PipelineHooks hooks);
  // If the pipeline is destroyed in the middle of a step, transfers may still write into buffers,
  // so exchanges and buffers are kept until the process ends.
  ~BucketPipeline();
  BucketPipeline(const BucketPipeline&) = delete;
  BucketPipeline& operator=(const BucketPipeline&) = delete;

  // Call these between steps. Before a step every bucket must have an exchange, and the buffers
  // must be large enough for all exchanges.
  void set_exchange(std::size_t bucket, std::unique_ptr<Exchange> exchange) {
    exchanges_[bucket] = std::move(exchange);
  }
  void fit_buffers();
  // By bucket. The span is valid as long as the pipeline exists.
  [[nodiscard]] std::span<const std::unique_ptr<Exchange>> exchanges() const { return exchanges_; }
  [[nodiscard]] Exchange& exchange(std::size_t bucket) const { return *exchanges_[bucket]; }

  // Begins a step; the previous one must be over.
  void begin_step(std::uint64_t step);
  // Looks once at everything in flight. True if something moved.
  bool look();
  // The next bucket in order whose sum is in place. Returns each bucket once.
  [[nodiscard]] std::optional<std::size_t> next_delivered();

  // Buckets [0, started()) have started; [0, first_open()) are done, and first_open() is not.
  [[nodiscard]] std::size_t started() const { return started_; }
  [[nodiscard]] std::size_t first_open() const { return first_open_; }
  [[nodiscard]] bool is_in_flight() const { return started_ > first_open_; }
  [[nodiscard]] bool can_start() const { return started_ < posted_ && hooks_.is_final(started_); }
  // Whether next_delivered() has reported all buckets.
  [[nodiscard]] bool has_delivered_all() const { return delivered_ == exchanges_.size(); }
  [[nodiscard]] bool is_over() const { return first_open_ == exchanges_.size(); }

 private:
  struct State {  // of a bucket that is posted and not done
    std::size_t buffers = 0;
    bool is_open = false;
    bool is_delivered = false;
  };
  void post();
  bool start();

  PipelineHooks hooks_;
  Device* device_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  BufferNeeds buffer_needs_;
  std::vector<std::unique_ptr<BufferSet>> buffers_;
  std::vector<bool> is_buffer_free_;
  std::vector<State> states_;  // by bucket
  std::uint64_t step_ = 0;
  // Buckets [0, posted_) have posted their receives, and next_delivered() has returned buckets [0,
  // delivered_). started() describes the other two counts.
  std::size_t posted_, started_, delivered_, first_open_;
};

}  // namespace dp
