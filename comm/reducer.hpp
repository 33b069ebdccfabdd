// The reducer: a thread that makes all MPI calls from its creation on and exchanges gradients while
// the caller computes.
//
// A step, as the caller sees it:
//     begin_step(step)            the gradient may now be written
//     bucket_ready(b)             bucket b's gradients are final; any order, each bucket once
//     wait_step()                 the sums are in place on all ranks; tells whether they are finite
// The thread exchanges the buckets in their planned order, whatever the order in which they become
// ready, several at a time. It sleeps while the network works. Between steps it runs what run()
// brings.
//
// An error of the thread (a silent rank, a damaged message) is thrown by the call that waits for
// it, and by every later call; the job cannot go on then. Destroying a reducer in the middle of a
// step stops the thread and leaves the transfers to the end of the job.
//
// All ranks make the same calls in the same order (bucket_ready apart). The caller is one thread;
// bucket_ready may come from any. From the second step on nothing is allocated.
//
// With a GPU the gradient may lie in the GPU's memory (ReducerOptions::device), or in the host's
// and be copied down before and up again after the exchange (on_delivered). Either way the GPU is
// ahead of the host, so readiness is asked for (is_final) and not told.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "comm/buckets.hpp"
#include "comm/communicator.hpp"
#include "comm/error_sample.hpp"
#include "comm/exchange.hpp"
#include "comm/exchange_kinds.hpp"
#include "comm/look_pace.hpp"
#include "comm/mpi_transport.hpp"
#include "comm/throttled_transport.hpp"
#include "comm/topology.hpp"
#include "kernels/base/state.hpp"

namespace dp {

struct ReducerOptions {
  std::string topology = "ring";  // of the buckets that name none (topology.hpp)
  // Every rank's host as a number, by rank; empty: by the hosts' names.
  std::vector<int> hosts = {};
  std::uint64_t seed = 0;
  std::size_t segment_bytes = 256u << 10;  // of fp32; rounded up to whole blocks of the codec
  std::size_t buckets_in_flight = 3;
  std::size_t window = 4;  // segments on the wire, per bucket
  // Nothing has moved for so long and a rank does not answer: the job ends. A rank that answers is
  // computing, and is waited for ten times as long (liveness.hpp).
  double comm_timeout_s = 60.0;
  // A link as slow as that between this rank and all others (throttled_transport.hpp); 0: as it
  // is.
  double throttle_bits_per_s = 0.0;
  // Between looks at the network while it works; 0: as its pace asks (look_pace.hpp).
  int sleep_us = 0;
  // Where the gradient and the residual lie; null: in host memory. Codecs are the device's, and
  // message buffers are host memory that the device reaches. It outlives the reducer.
  Device* device = nullptr;
  // If set, the thread asks it whether a bucket's values are final (the oldest that is not, at
  // every look), and bucket_ready is not called. From begin_step on it answers for that step.
  std::function<bool(std::size_t bucket)> is_final = {};
  // The parameters that the gradient belongs to, and their weight decay, for exchanges that have a
  // momentum of their own (dgc.hpp). None: without weight decay.
  std::span<const float> parameters = {};
  float weight_decay = 0.0f;
  // Called by the thread when a bucket's sum is in place, for one bucket after the other, before
  // wait_step returns. Whether the step is finite is not known then.
  std::function<void(std::size_t bucket)> on_delivered = {};
  // Called by the thread before anything else, to make a GPU its current one.
  std::function<void()> thread_start = {};
  // Takes the slices of the thread: buckets, codecs, waits. Outlives the reducer; null: no trace.
  TraceTrack* trace = nullptr;
  // For tests: called by the thread between looks.
  std::function<void()> on_look = {};
};

struct StepVerdict {
  bool finite = true;  // false: some rank's gradient was not; all ranks skip the step
};

// Of one bucket, or of all. Times are seconds of the reducer's thread.
struct CommCost {
  double comm_s = 0.0;    // wall time with a bucket (this bucket) in flight
  double encode_s = 0.0;  // of it, inside codecs and the caller's hooks
  double decode_s = 0.0;
  double peer_wait_s = 0.0;  // of it, idle because a rank has not begun its oldest bucket in flight
  double wire_s = 0.0;       // the rest
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  // Of the encodes that were looked at: errors of one segment a step and bucket, saturation in the
  // steps of sample_error().
  EncodeSample::Sums sampled;
  double residual_squares = 0.0;  // the sum of squares of the residual now
  // Of sample_error(): squares of delivered - exact sum and of the exact sum, over the sampled
  // values, the same on all ranks; and what this rank has sent for it, not part of sent_bytes.
  double delivered_error_squares = 0.0;
  double delivered_value_squares = 0.0;
  std::uint64_t sample_bytes = 0;

  [[nodiscard]] double relative_error() const;  // sqrt(error squares / value squares)
  [[nodiscard]] double saturation() const;      // the share of values; 0 where none was looked at
  [[nodiscard]] double delivered_relative_error() const;  // 0 where nothing was sampled
  [[nodiscard]] double residual_norm() const;
};

struct CommTimes {
  CommCost total;
  std::vector<CommCost> buckets;
};

// Throws Error(usage) where there are not enough message streams for so many buckets (tags.hpp).
void check_streams(std::size_t buckets);

class Reducer {
 public:
  // Collective. `gradient` and `communicator` outlive the reducer; the latter is used by the thread
  // alone from now on. The buckets are disjoint slices of the gradient. Throws Error(usage) for an
  // unknown topology, Error(internal) for a codec without a form for the device (has_codec).
  Reducer(Communicator& communicator, std::span<float> gradient, std::vector<Bucket> buckets,
          const ReducerOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void begin_step(std::uint64_t step);
  void bucket_ready(std::size_t bucket);
  // On a verdict that is not finite the owners of the delivered sums have put them back into their
  // residuals, where there are any, so that no residual is lost with the step.
  StepVerdict wait_step();

  // Collective, between steps. From the next step on bucket b has the codec specs[b]. Residuals
  // stay: what a bucket has not delivered yet is sent when its codec has feedback again. Buckets
  // whose spec does not change keep their exchange and its state. Throws Error(usage) for a bad
  // spec, with nothing changed.
  void replace_codecs(const std::vector<std::string>& specs);

  // Collective, between steps. The next step's sums are compared with the exact ones, on a sample
  // (error_sample.hpp), after wait_step has returned, and values are looked at for saturation
  // (encode_sample.hpp); nothing is told of a step that is skipped.
  void sample_error();

  // Collective: runs f(communicator) on the thread, after all exchanges begun so far, and returns
  // what it returns or throws what it throws. Not between begin_step and the last bucket_ready: it
  // would wait for the step.
  template <class F>
  auto run(F f) -> std::invoke_result_t<F, Communicator&> {
    using Result = std::invoke_result_t<F, Communicator&>;
    if constexpr (std::is_void_v<Result>) {
      run_job([](void* context, Communicator& c) { (*static_cast<F*>(context))(c); }, &f);
    } else {
      struct Context {
        F* f;
        std::optional<Result> result;
      } context{&f, std::nullopt};
      run_job(
          [](void* p, Communicator& c) {
            auto* in = static_cast<Context*>(p);
            in->result.emplace((*in->f)(c));
          },
          &context);
      return std::move(*context.result);
    }
  }

  // What the exchanges have cost since the last call. Waits for the thread as run() does.
  [[nodiscard]] CommTimes take_times();

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] std::span<const int> hosts() const { return hosts_; }  // as a number, by rank
  [[nodiscard]] const Topology& topology_of(std::size_t bucket) const;
  // What this rank sends for one exchange of that bucket; nothing where that depends on the values.
  [[nodiscard]] std::optional<std::uint64_t> wire_bytes(std::size_t bucket) const;
  // The message latencies, one after the other, of one exchange of that bucket: the topology's
  // hops, with powersgd once for each of its two exchanges.
  [[nodiscard]] std::size_t hops(std::size_t bucket) const;
  // As long as the gradient where any bucket has feedback, empty otherwise. Memory of
  // ReducerOptions::device where one is given: not for the host to touch. To be used only between
  // wait_step and begin_step.
  [[nodiscard]] std::span<float> residual() const { return residual_; }
  // Between steps: the residual, and what exchanges keep from step to step.
  void list_state(StateVisitor& visitor);

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    void (*call)(void*, Communicator&) = nullptr;  // null: the step
    void* context = nullptr;
    std::exception_ptr error;
    bool is_done = false;
  };

  void run_job(void (*call)(void*, Communicator&), void* context);
  void submit(Job& job, std::unique_lock<std::mutex>& lock);
  void wait_for(Job& job, std::unique_lock<std::mutex>& lock);

  void make_exchanges(const std::vector<std::string>& specs);
  [[nodiscard]] MadeExchange make_exchange(std::size_t bucket, const CodecSpec& spec);
  // The floats that go over the topology, one sum after the other.
  [[nodiscard]] std::vector<std::size_t> sums_of(std::size_t bucket) const;
  // Writes the bucket's messages.
  [[nodiscard]] const Codec& codec_of(std::size_t bucket) const {
    return codecs_[bucket] == nullptr ? *exact_ : *codecs_[bucket];
  }

  // The thread.
  void main_loop();
  void exchange_step();
  void compare_samples();
  bool look();
  bool post_and_start();
  void call_hook(const std::function<void(std::size_t)>& hook, std::size_t bucket);
  void account(Clock::time_point& last);
  void rest();
  void trace_start(std::size_t bucket);
  void trace_delivered(std::size_t bucket);
  void trace_idle(Clock::time_point begin, Clock::time_point end);
  [[nodiscard]] bool is_in_flight() const { return started_ > first_open_; }
  [[nodiscard]] bool is_bucket_final(std::size_t bucket) const;
  [[nodiscard]] std::string describe_wait() const;

  Communicator& communicator_;
  std::span<float> gradient_;
  std::vector<Bucket> buckets_;
  ReducerOptions options_;
  MpiTransport mpi_;
  std::vector<int> hosts_;
  std::optional<ThrottledTransport> throttled_;
  std::unique_ptr<Codec> exact_;                // none, on the gradient's memory
  std::vector<CodecSpec> specs_;                // by bucket
  std::vector<std::unique_ptr<Codec>> codecs_;  // null: the exact one
  std::unique_ptr<DgcMomentum> momentum_;       // of the whole gradient, where an exchange wants it
  std::shared_ptr<float> residual_memory_;
  std::span<float> residual_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  BufferNeeds buffer_needs_;
  std::vector<std::unique_ptr<BufferSet>> buffers_;
  std::vector<bool> is_buffer_free_;
  std::vector<std::size_t> buffer_of_;  // by bucket, while it has one

  // Shared with the caller.
  std::mutex mutex_;
  std::condition_variable to_thread_, to_caller_;
  std::vector<Job*> queue_;
  std::unique_ptr<std::atomic<bool>[]> is_ready_;
  std::atomic<bool> must_stop_ = false;
  std::exception_ptr failure_;
  Job step_job_;
  std::uint64_t step_ = 0;
  StepVerdict verdict_;
  bool must_sample_ = false;

  // The thread's own: buckets [0, posted_) have receives, [0, started_) are under way or over,
  // [0, first_open_) are over.
  std::size_t posted_ = 0, started_ = 0, first_open_ = 0;
  std::uint64_t running_step_ = 0;
  CommTimes times_;
  std::unique_ptr<ErrorSample> sample_;
  bool is_sampling_ = false;
  double seen_codec_s_ = 0.0;  // of the stats, already accounted
  LookPace pace_;
  std::vector<double> hook_s_;  // by bucket: in on_delivered, since take_times
  Clock::time_point served_at_;
  // For the trace, by bucket: when it started, or 0, and the bytes that it had sent by then.
  struct Start {
    std::int64_t at_ns = 0;
    std::uint64_t sent_bytes = 0;
  };
  std::vector<Start> starts_;
  std::size_t traced_ = 0, last_wait_ = 0;  // of the track's slices: seen by trace_idle, its last

  std::thread thread_;
};

}  // namespace dp
