// The reducer: a thread that makes all MPI calls from its creation on and exchanges gradients while
// the caller computes.
//
// A step, as the caller sees it:
//     begin_step(step)            the gradient may now be written
//     bucket_ready(b)             bucket b's gradients are final; any order, each bucket once
//     wait_step()                 the sums are in place on all ranks; returns the verdict
// The thread exchanges the buckets in their planned order, several at a time, even if they become
// ready in another order. It sleeps while the network is busy. Between steps it runs the functions
// passed to run().
//
// An error on the thread (a silent rank, a damaged message) is thrown by the call that waits for
// the thread and by every later call; the job cannot continue. If a reducer is destroyed in the
// middle of a step, the thread stops, and transfers remain under way until the job ends.
//
// All ranks make the same calls in the same order, except for bucket_ready. Only one thread may
// call these functions, except bucket_ready, which any thread may call. From the second step on
// nothing is allocated.
//
// With a GPU the gradient may be in the GPU's memory (ReducerOptions::device). Or it is in host
// memory: buckets are copied there before the exchange and back after it (on_delivered). In both
// cases the host is not notified when the GPU has finished a bucket. Therefore the thread polls
// is_final, and bucket_ready is not called.
//
// Its parts: the thread (job_thread.hpp), the buckets' exchanges (bucket_exchanges.hpp), their
// pipeline (bucket_pipeline.hpp) and the meter of times (exchange_meter.hpp). A step is two jobs of
// the thread: one until all sums are in place, one until all transfers have ended. Both run the
// same loop: look, measure, sleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/exchange/exchange.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/mpi/job_thread.hpp"
#include "comm/mpi/look_pace.hpp"
#include "comm/mpi/prompt_gather.hpp"
#include "comm/rate/auto_rate.hpp"
#include "comm/reducer/bucket_exchanges.hpp"
#include "comm/reducer/bucket_pipeline.hpp"
#include "comm/reducer/error_sample.hpp"
#include "comm/reducer/exchange_meter.hpp"
#include "comm/reducer/follow_up.hpp"
#include "comm/reducer/gpu_watch.hpp"
#include "comm/reducer/gradient_state.hpp"
#include "comm/reducer/reducer_options.hpp"
#include "comm/topologies/buckets.hpp"
#include "comm/topologies/topology.hpp"
#include "kernels/base/state.hpp"

namespace dp {

struct StepVerdict {
  bool finite = true;  // false: some gradient was not finite; all ranks skip the step
  // If `finite` is false: the index of the first value of this rank's own gradient that is not
  // finite, in the order of the buckets; kAllFinite if there is none.
  std::size_t first_not_finite = Exchange::kAllFinite;
  ClampedValues clamped;  // by this rank, counted from the start of the gradient
  // The bytes of buckets with a rate (Reducer::set_rate), and the bucket whose residual has grown
  // most on this rank, if that was measured.
  RateTally rate;
  std::optional<std::size_t> grown_bucket = std::nullopt;
  BusyPeriod busy;  // on steady_clock
  // Some rank wishes to stop after this step, so all ranks stop. Without buckets a rank knows only
  // its own wish.
  bool stop = false;
};

class Reducer {
 public:
  // Collective. `gradient` and `communicator` outlive the reducer; from now on only the thread uses
  // the communicator. The buckets are disjoint slices of the gradient. Throws Error(usage) for an
  // unknown topology, Error(internal) for a codec without an implementation for the device
  // (has_codec).
  Reducer(Communicator& communicator, std::span<float> gradient, std::vector<Bucket> buckets,
          const ReducerOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void begin_step(std::uint64_t step);
  void bucket_ready(std::size_t bucket);
  // If the verdict is not finite, each delivered sum has been added to the residual of the rank
  // that owns this sum (if there is a residual), so that nothing is lost with the step.
  // when_finite: if given, the thread calls it as soon as all sums are in place and the verdict is
  // finite, before wait_step returns. This saves the time in which the caller wakes up. It is not
  // called if the verdict is already known when wait_step begins. Its exception is a failure of the
  // thread.
  StepVerdict wait_step(const FollowUp::Action* when_finite = nullptr);

  // Collective, between steps. From the next step on, bucket b is sent with codecs[b]. Residuals
  // are kept: a bucket's residual is sent when its codec has feedback again. Buckets whose codec
  // does not change keep their exchange and its state.
  void replace_codecs(const std::vector<CodecSpec>& codecs);

  // Between steps: sets the rate order for the next step, for buckets whose codec has a rate
  // (has_rate). Everything that `order` refers to must live until that step is over.
  void set_rate(const RateOrder& order) { exchanges_.set_rate(order); }

  // Collective, between steps. Requests, for the next step, a comparison of the sums with the exact
  // ones on a sample (error_sample.hpp; it runs after wait_step has returned) and a count of
  // saturated values (encode_sample.hpp). A step that is skipped gives no result.
  void sample_error();

  // Collective: runs f(communicator) on the thread, after all exchanges begun so far, and returns
  // its result or throws its exception. Do not call it between begin_step and the last
  // bucket_ready: it would wait for the step.
  template <class F>
  auto run(F f) -> std::invoke_result_t<F, Communicator&> {
    return thread_->run([&] { return f(communicator_); });
  }

  // Collective, like run(). Replaces a few values by their sums over all ranks, between steps. The
  // wait for the last rank counts as communication time.
  void all_sum(std::span<std::int64_t> values);

  // The exchanges' costs since the last call. Waits for the thread as run() does. The call computes
  // the norms of all residuals; this takes about as long as adding two arrays of the gradient's
  // length.
  [[nodiscard]] CommTimes take_times();
  // take_times() in two calls, without the residuals' norms: ask_times() returns at once, and
  // asked_times() waits. A step that begins between the two calls is not included. Do not call
  // take_times() between the two calls.
  void ask_times();
  [[nodiscard]] CommTimes asked_times();

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return exchanges_.buckets(); }
  [[nodiscard]] std::span<const int> hosts() const {
    return exchanges_.hosts();
  }  // as numbers, by rank
  [[nodiscard]] std::size_t window() const { return options_.window; }
  // Between steps: the time at which each bucket's last exchange began, on steady_clock.
  [[nodiscard]] std::span<const double> started_s() const { return meter_.started_s(); }
  [[nodiscard]] const Topology& topology_of(std::size_t bucket) const {
    return exchanges_.topology_of(bucket);
  }
  // The bytes that this rank sends for that bucket in a step, averaged over Bucket::every steps;
  // empty if they depend on the values.
  [[nodiscard]] std::optional<std::uint64_t> wire_bytes(std::size_t bucket) const {
    return exchanges_.wire_bytes(bucket);
  }
  // This rank's list of messages in an exchange of that bucket. Only for buckets exchanged as one
  // sum.
  [[nodiscard]] ExchangePlan plan_of(std::size_t bucket) const {
    return exchanges_.plan_of(bucket);
  }
  // This rank's chunk of that bucket: the rank encodes the chunk's sum for all ranks. Only for a
  // topology in which each rank owns a chunk (has_owner_weights).
  [[nodiscard]] ElementRange owned_by_this_rank(std::size_t bucket) const {
    return exchanges_.owned_by_this_rank(bucket);
  }
  // The number of consecutive message latencies in one exchange of that bucket: the topology's
  // hops, counted twice for powersgd, which makes two sums one after the other.
  [[nodiscard]] std::size_t hops(std::size_t bucket) const { return exchanges_.hops(bucket); }
  // The topology's wire_factor for this rank.
  [[nodiscard]] double wire_factor(std::size_t bucket) const {
    return exchanges_.wire_factor(bucket);
  }
  // Residual and velocity. Use them only between steps, after all transfers of the last step.
  [[nodiscard]] GradientState& state() { return exchanges_.state(); }
  // Has the gradient's length if any bucket has feedback, and is empty otherwise. If
  // ReducerOptions::device is given, the residual is in this device's memory, and the host must not
  // touch it. Use it only between wait_step and begin_step.
  [[nodiscard]] std::span<float> residual() const { return exchanges_.state().residual(); }
  // The memory that holds the gradient and the residual. If it is a GPU's, only the thread (run())
  // uses it.
  [[nodiscard]] const SegmentMemory& memory() const { return exchanges_.exact().memory(); }
  // Call it between steps. Waits until all transfers of the last step have ended.
  void scale_residual(float factor);
  // Scales residual and velocity, because gradients will be `factor` times as large from now on.
  void scale_memory(float factor);
  // Call it between steps, whenever this rank has finished a piece of work of its own. Until the
  // next step begins, the rank then tells the others that it is busy and advancing, so that they
  // wait for it.
  void note_work() { work_done_.fetch_add(1, std::memory_order_relaxed); }
  // Between steps: lists the residual, the velocity and what exchanges keep from step to step.
  void list_state(StateVisitor& visitor);

 private:
  using Clock = std::chrono::steady_clock;

  // On the thread: the two jobs of a step and their parts, and the other jobs.
  void deliver_sums();
  void take_rate();
  void end_transfers();
  template <class IsReached>
  void exchange_until(IsReached is_reached);
  void bucket_starts(std::size_t bucket);
  void hand_over(std::size_t bucket);
  void account();
  void compare_samples();
  [[nodiscard]] bool is_busy() const {
    return pipeline_.is_in_flight() || (gather_ && gather_->is_under_way());
  }
  // Whether the running step is compared with the exact sums.
  [[nodiscard]] bool is_sampling() const { return sample_ && sample_->is_on(); }
  void rest();
  void tell_whereabouts(std::size_t buckets_begun, bool is_in_step);
  [[nodiscard]] bool is_bucket_final(std::size_t bucket) const;
  [[nodiscard]] std::string describe_wait() const;
  void answer();
  [[nodiscard]] CommTimes taken_times();

  Communicator& communicator_;
  Communicator::Lent lent_;  // to this object's thread
  ReducerOptions options_;
  BucketExchanges exchanges_;
  BucketPipeline pipeline_;
  std::optional<PromptGather> gather_;  // with a desk

  // The caller writes these members before it posts the step's jobs, and reads the verdict after
  // the jobs. In between, the caller changes only is_ready_.
  std::unique_ptr<std::atomic<bool>[]> is_ready_;
  std::uint64_t step_ = 0;
  JobThread::Number deliver_job_ = 0;  // of the step
  StepVerdict verdict_;
  FollowUp follow_up_;                        // of wait_step()
  JobThread::Number times_job_ = 0;           // of ask_times(), until asked_times()
  CommTimes asked_times_;                     // its result
  std::atomic<std::uint32_t> work_done_ = 0;  // since the last step

  // The thread's own.
  std::uint64_t running_step_ = 0;
  ExchangeMeter meter_;
  std::unique_ptr<ErrorSample> sample_;  // null before the first sample_error()
  LookPace pace_;
  Clock::time_point served_at_;
  GpuWatch gpu_;

  // The thread's jobs use all members above. Declared last, so that it is destroyed first.
  std::optional<JobThread> thread_;
};

}  // namespace dp
