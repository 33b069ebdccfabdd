// The reducer: a thread that makes all MPI calls from its creation on and exchanges gradients while
// the caller computes.
//
// A step, as the caller sees it:
//     begin_step(step)            the gradient may now be written
//     bucket_ready(b)             bucket b's gradients are final; any order, each bucket once
//     wait_step()                 the sums are in place on all ranks; tells whether they are finite
// The thread exchanges the buckets in their planned order, several at a time, even if they become
// ready in another order. It sleeps while the network works. Between steps it runs the functions
// that run() gets.
//
// The call that waits for the thread throws its errors (a silent rank, a damaged message), and so
// does every later call; the job cannot continue then. If a reducer is destroyed in the middle of a
// step, the thread stops, and transfers stay under way until the job ends.
//
// All ranks make the same calls in the same order, except for bucket_ready. One thread calls; any
// thread may call bucket_ready. From the second step on nothing is allocated.
//
// With a GPU the gradient may lie in the GPU's memory (ReducerOptions::device). Or it lies in host
// memory and is copied there before the exchange and back after it (on_delivered). In both cases
// the host is not told when the GPU has finished a bucket, so the thread asks for it (is_final),
// and bucket_ready is not called.
//
// Its parts: the thread (job_thread.hpp), the buckets' exchanges (bucket_exchanges.hpp), their
// pipeline (bucket_pipeline.hpp) and the meter of times (exchange_meter.hpp). A step is two jobs:
// one until all sums are in place, one until all transfers have ended. Both run the same loop of
// looking, measuring and sleeping.
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
#include "comm/reducer/gpu_watch.hpp"
#include "comm/reducer/gradient_state.hpp"
#include "comm/reducer/reducer_options.hpp"
#include "comm/topologies/buckets.hpp"
#include "comm/topologies/topology.hpp"
#include "kernels/base/state.hpp"

namespace dp {

struct StepVerdict {
  bool finite = true;  // false: some rank's gradient was not; all ranks skip the step
  // If it is false: where this rank's own gradient was not finite first, in the order of the
  // buckets; kAllFinite if it was.
  std::size_t first_not_finite = Exchange::kAllFinite;
  ClampedValues clamped;  // by this rank, counted from the start of the gradient
  // What buckets with a rate (Reducer::set_rate) have sent; and the one whose residual has grown
  // most on this rank, where that was measured.
  RateTally rate;
  std::optional<std::size_t> grown_bucket = std::nullopt;
  BusyPeriod busy;  // on steady_clock
  // Some rank wishes to stop after this step: all ranks do. Without buckets a rank knows only its
  // own wish.
  bool stop = false;
};

class Reducer {
 public:
  // Collective. `gradient` and `communicator` outlive the reducer; from now on only the thread uses
  // the communicator. The buckets are disjoint slices of the gradient. Throws Error(usage) for an
  // unknown topology, Error(internal) for a codec without a form for the device (has_codec).
  Reducer(Communicator& communicator, std::span<float> gradient, std::vector<Bucket> buckets,
          const ReducerOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void begin_step(std::uint64_t step);
  void bucket_ready(std::size_t bucket);
  // If the verdict is not finite, the owners of the delivered sums have put them back into their
  // residuals, if there are any, so that nothing is lost with the step.
  StepVerdict wait_step();

  // Collective, between steps. From the next step on bucket b has codecs[b]. Residuals
  // stay: what a bucket has not delivered yet is sent when its codec has feedback again. Buckets
  // whose codec does not change keep their exchange and its state.
  void replace_codecs(const std::vector<CodecSpec>& codecs);

  // Between steps: how finely buckets whose codec has a rate (has_rate) are rounded from the next
  // step on. What `order` refers to must live until that step is over.
  void set_rate(const RateOrder& order) { exchanges_.set_rate(order); }

  // Collective, between steps. In the next step, after wait_step has returned, the sums are
  // compared with the exact ones on a sample (error_sample.hpp), and saturated values are counted
  // (encode_sample.hpp). A step that is skipped gives no result.
  void sample_error();

  // Collective: runs f(communicator) on the thread, after all exchanges begun so far, and returns
  // what it returns or throws what it throws. Not between begin_step and the last bucket_ready: it
  // would wait for the step.
  template <class F>
  auto run(F f) -> std::invoke_result_t<F, Communicator&> {
    return thread_->run([&] { return f(communicator_); });
  }

  // Collective, as run(): a sum of few values, between steps. The time that it waits for the last
  // rank counts as communication.
  void all_sum(std::span<std::int64_t> values);

  // What the exchanges have cost since the last call. Waits for the thread as run() does. Residuals
  // are read for their norms, which takes as long as an addition of the gradient.
  [[nodiscard]] CommTimes take_times();
  // The same in two calls, with norms of 0: the first returns at once, the second waits. A step
  // that begins between them is not in it. take_times() is not called between them.
  void ask_times();
  [[nodiscard]] CommTimes asked_times();

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return exchanges_.buckets(); }
  [[nodiscard]] std::span<const int> hosts() const {
    return exchanges_.hosts();
  }  // as numbers, by rank
  [[nodiscard]] std::size_t window() const { return options_.window; }
  // Between steps: when the last step's exchange of each bucket began, on steady_clock.
  [[nodiscard]] std::span<const double> started_s() const { return meter_.started_s(); }
  [[nodiscard]] const Topology& topology_of(std::size_t bucket) const {
    return exchanges_.topology_of(bucket);
  }
  // The bytes that this rank sends for that bucket in a step, averaged over Bucket::every steps;
  // nothing if they depend on the values.
  [[nodiscard]] std::optional<std::uint64_t> wire_bytes(std::size_t bucket) const {
    return exchanges_.wire_bytes(bucket);
  }
  // This rank's list of messages in an exchange of that bucket, whose values are one sum.
  [[nodiscard]] ExchangePlan plan_of(std::size_t bucket) const {
    return exchanges_.plan_of(bucket);
  }
  // The chunk of that bucket whose sum this rank encodes for all. Only for a topology in which each
  // rank owns a chunk (has_owner_weights).
  [[nodiscard]] ElementRange owned_by_this_rank(std::size_t bucket) const {
    return exchanges_.owned_by_this_rank(bucket);
  }
  // The message latencies, one after the other, of one exchange of that bucket: the topology's
  // hops, with powersgd once for each of its two exchanges.
  [[nodiscard]] std::size_t hops(std::size_t bucket) const { return exchanges_.hops(bucket); }
  // For this rank.
  [[nodiscard]] double wire_factor(std::size_t bucket) const {
    return exchanges_.wire_factor(bucket);
  }
  // Between steps, after all that was sent in the last one: residual and velocity.
  [[nodiscard]] GradientState& state() { return exchanges_.state(); }
  // As long as the gradient if any bucket has feedback, empty otherwise. It is memory of
  // ReducerOptions::device if one is given, which the host must not touch. Use it only between
  // wait_step and begin_step.
  [[nodiscard]] std::span<float> residual() const { return exchanges_.state().residual(); }
  // Between steps, after all that was sent in the last one.
  void scale_residual(float factor);
  // The same, and the velocities too: gradients are from now on this many times as large.
  void scale_memory(float factor);
  // Between steps: this rank works alone, and has done another piece of its work. Until the next
  // step begins, the others hear that it is busy and comes on.
  void note_work() { work_done_.fetch_add(1, std::memory_order_relaxed); }
  // Between steps: the residual, and what exchanges keep from step to step.
  void list_state(StateVisitor& visitor);

 private:
  using Clock = std::chrono::steady_clock;

  // The thread: the two jobs of a step, what they are made of, and what other jobs are.
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
  // The running step is compared with the exact sums.
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

  // The caller writes these before the step's jobs come, and reads the verdict after them; only
  // is_ready_ changes meanwhile.
  std::unique_ptr<std::atomic<bool>[]> is_ready_;
  std::uint64_t step_ = 0;
  JobThread::Number deliver_job_ = 0;  // of the step
  StepVerdict verdict_;
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

  // Its jobs use all of the above: last, so that it ends first.
  std::optional<JobThread> thread_;
};

}  // namespace dp
