// Gathers a few floats of every rank in the middle of a step, while buckets are in flight. Batch
// normalisation over the images of all ranks needs this in its forward and backward passes.
//
// Two threads meet here. An operation hands its floats to the GatherDesk and waits. The reducer's
// thread, which makes all MPI calls, owns a PromptGather: it checks the desk between any two
// segments and sends the floats before the next segment. The floats wait only for segments that MPI
// already has.
//
// Every rank sends its message directly to every other rank, in all topologies. More than one hop
// would take longer, and the computation is waiting. The cost of a gathering on each rank:
//     messages (P - 1), wire bytes (P - 1)(20 + 4 x floats)
// The streams of buckets and these messages have different tags (tags.hpp), so neither can be taken
// for the other, whatever the order and the timing.
//
// Wire format of a message: a header of 16 bytes, the floats, a seal of 4 bytes (seal.hpp).
//     u32 kind     0x44500003
//     u32 number   of the gathering, from 0, the same on all ranks
//     u32 pass     0 forward, 1 backward
//     u32 floats   that follow
//
// Failures: a damaged or unexpected message throws Error(communication) that names the sender. When
// the reducer ends, with or without a failure, every waiting and every later gather() throws.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/transport.hpp"
#include "kernels/base/trace.hpp"
#include "kernels/rank_gather.hpp"

namespace dp {

// The place where operations hand in floats. Only one operation at a time may use it.
class GatherDesk final : public RankGather {
 public:
  // `trace` receives a slice for each wait of the thread that calls gather(); null: no trace.
  explicit GatherDesk(std::size_t ranks, TraceTrack* trace = nullptr)
      : ranks_(ranks), trace_(trace) {}

  [[nodiscard]] std::size_t ranks() const override { return ranks_; }
  [[nodiscard]] bool is_served() override;
  void reserve(std::size_t floats) override { most_floats_ = std::max(most_floats_, floats); }
  void gather(Pass pass, std::span<const float> mine, std::span<float> all) override;

  // The time for which operations have waited since the last call.
  struct Waits {
    double forward_s = 0, backward_s = 0;
  };
  [[nodiscard]] Waits take_waits();

  // ---- for the thread that serves the desk
  struct Request {
    Pass pass = Pass::forward;
    std::span<const float> mine;
    std::span<float> all;
  };
  [[nodiscard]] std::size_t most_floats() const { return most_floats_; }
  // From now on requests are served. gather() calls `wake` to wake up the thread that serves them.
  void open(std::function<void()> wake);
  [[nodiscard]] bool has_request() const { return has_request_.load(std::memory_order_acquire); }
  [[nodiscard]] const Request& request() const { return request_; }  // while has_request()
  void served();
  // From now on requests are no longer served. Waiting and later calls of gather() throw `why`, or
  // a general error if `why` is null.
  void close(std::exception_ptr why);

 private:
  const std::size_t ranks_;
  TraceTrack* trace_;
  std::size_t most_floats_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<bool> has_request_ = false;
  Request request_;
  bool is_open_ = false;
  std::exception_ptr why_closed_;
  std::function<void()> wake_;
  Waits waits_;
};

// This rank's cost of gatherings.
struct GatherCost {
  double gather_s = 0;  // from the request until all ranks' floats are there
  std::uint64_t gatherings = 0, sent_bytes = 0;
};

// Serves a desk. The reducer's thread owns it. Nothing is allocated after construction.
class PromptGather {
 public:
  // Transport and desk must outlive this object. `trace` receives a slice for each gathering.
  PromptGather(Transport& transport, GatherDesk& desk, TraceTrack* trace);
  // If messages of this rank are still under way, their memory is kept until the process ends.
  ~PromptGather();
  PromptGather(const PromptGather&) = delete;
  PromptGather& operator=(const PromptGather&) = delete;

  // Takes a request and moves messages; never waits. True if something moved.
  bool look();
  // Whether a request was taken and some rank's floats have not arrived yet.
  [[nodiscard]] bool is_under_way() const { return is_under_way_; }
  [[nodiscard]] bool has_work() const { return desk_.has_request() && !is_under_way_; }
  // How long the running gathering has taken so far.
  [[nodiscard]] double waited_s() const;
  // "the statistics of batch normalisation, gathering 17"
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] GatherCost take_cost() { return std::exchange(cost_, {}); }
  void let_go() { channel_->let_go(); }

 private:
  using Clock = TraceClock;
  static constexpr std::size_t kHeaderBytes = 16;

  [[nodiscard]] static std::size_t bytes_of(std::size_t floats) {  // of a message
    return kHeaderBytes + floats * sizeof(float) + kSealBytes;
  }
  [[nodiscard]] std::size_t others() const { return ranks_ - 1; }
  [[nodiscard]] int other(std::size_t i) const {
    return static_cast<int>((static_cast<std::size_t>(rank_) + 1 + i) % ranks_);
  }
  [[nodiscard]] std::byte* received(std::size_t i) const;
  [[nodiscard]] std::byte* sent(std::size_t parity) const;
  bool take_note_of_ended();
  void start();
  void finish();
  void check(std::size_t i) const;

  Transport& transport_;
  GatherDesk& desk_;
  TraceTrack* trace_;
  int rank_;
  std::size_t ranks_, message_bytes_;
  std::shared_ptr<std::byte[]> memory_;
  std::unique_ptr<Channel> channel_;
  std::vector<std::size_t> received_bytes_;  // by other rank
  std::size_t arrived_ = 0;
  // The two buffers are used in turn, because a rank may get its next request before its last sends
  // have ended.
  std::size_t sends_under_way_[2] = {0, 0};
  std::uint32_t number_ = 0;
  bool is_under_way_ = false;
  Clock::time_point began_;
  GatherCost cost_;
};

}  // namespace dp
