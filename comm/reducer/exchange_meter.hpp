// Measures the costs of exchanges, seconds and bytes, by bucket and in total, and records the waits
// for a trace.
//
// A bucket is *in flight* from its start until its exchange is done. The reducer's thread calls
// account() after each look at the network; the time since the last call is added to every bucket
// in flight, and once to the total. Hence the buckets' times overlap, and the total's do not:
//     comm       the time with a bucket in flight; in the total also gatherings and waits for ranks
//     encode     the part of comm in encoders and in the caller's hooks; decode: in decoders
//     peer_wait  the part of the rest in which another rank had not begun the oldest bucket in
//                flight
//     wire       the time that is left
//
// The clock is a parameter so that tests can replace it. One thread uses a meter. Only take()
// allocates, and nothing here fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/exchange/encode_sample.hpp"
#include "comm/exchange/exchange.hpp"
#include "comm/mpi/prompt_gather.hpp"
#include "comm/rate/auto_rate.hpp"
#include "comm/reducer/error_sample.hpp"
#include "kernels/base/trace.hpp"

namespace dp {

// The times of one bucket, or of all. Times are seconds of the reducer's thread.
struct CommCost {
  double comm_s = 0.0;    // wall time with this bucket (in the total: any) in flight
  double encode_s = 0.0;  // the part of comm_s in encoders and the caller's hooks
  double decode_s = 0.0;
  // The part of comm_s spent waiting for a rank that has not begun the oldest bucket in flight.
  double peer_wait_s = 0.0;
  double wire_s = 0.0;  // the rest
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_messages = 0;
  // Samples of the codec's quality: the error of one segment per step and bucket, and the
  // saturation in steps for which Reducer::sample_error() was called.
  EncodeSample::Sums sampled;
  double residual_squares = 0.0;  // of the current residual
  // From sample_error(): the squares of (delivered - exact sum) and of the exact sum over the
  // sampled values, the same on all ranks; and the bytes that this rank has sent for the
  // comparison, which are not part of sent_bytes.
  double delivered_error_squares = 0.0;
  double delivered_value_squares = 0.0;
  std::uint64_t sample_bytes = 0;
  // Only in the total: the gatherings of operations (prompt_gather.hpp). Their time is part of
  // comm_s, but their bytes are not part of sent_bytes.
  GatherCost gathered;

  [[nodiscard]] double relative_error() const;  // sqrt(error squares / value squares)
  [[nodiscard]] double saturation() const;      // the fraction of examined values; 0 if none
  [[nodiscard]] double delivered_relative_error() const;  // 0 if nothing was sampled
  [[nodiscard]] double residual_norm() const;
};

struct CommTimes {
  CommCost total;
  std::vector<CommCost> buckets;
};

class ExchangeMeter {
 public:
  using Clock = TraceClock;
  using Exchanges = std::span<const std::unique_ptr<Exchange>>;  // by bucket

  // `exchanges` outlives the meter; a bucket's exchange may change between steps. `trace` receives
  // the buckets' slices and the waits between the codecs' slices; null: no trace.
  ExchangeMeter(Exchanges exchanges, TraceTrack* trace,
                std::function<Clock::time_point()> now = &Clock::now);

  // Skips the time until now: it belongs to no bucket.
  void skip() { accounted_ = now_(); }
  // Adds the time since the last skip() or account() to the buckets of [first, end) that are not
  // done, and to the total.
  void account(std::size_t first, std::size_t end);
  // Adds the time since the last skip() or account() to the total alone, because a gathering was in
  // flight, but no bucket.
  void account_gathering();
  // Adds the time since the last skip() or account() to the total, as a wait for ranks that are
  // later than this rank.
  void account_waiting();
  // Adds the time of the caller's work on a bucket, even if the bucket is done already. Call it
  // before the account() that covers this time.
  void add_hook(std::size_t bucket, double hook_s);
  void add_error(std::size_t bucket, const ErrorSample::Result& result);

  // Begin and end a bucket's slice in the trace.
  void bucket_starts(std::size_t bucket);
  void bucket_delivered(std::size_t bucket);

  // By bucket: the time of its last start, in seconds.
  [[nodiscard]] std::span<const double> started_s() const { return started_s_; }

  // Call it when nothing is in flight: a busy period may begin with the next look.
  void busy_begins();
  // Call it when the thread has slept while something was in flight.
  void add_nap(double nap_s) { nap_squares_ += nap_s * nap_s; }
  // The period since the last busy_begins().
  [[nodiscard]] BusyPeriod busy_until_now() const;

  // Returns the costs since the last call, without residual_squares. Clears the exchanges'
  // statistics.
  [[nodiscard]] CommTimes take();

 private:
  void trace_wait(std::size_t first, std::size_t end, Clock::time_point until);

  Exchanges exchanges_;
  TraceTrack* trace_;
  std::function<Clock::time_point()> now_;
  Clock::time_point accounted_;
  CommTimes times_;
  std::vector<double> hook_s_;  // by bucket
  double seen_codec_s_ = 0.0;   // of the exchanges' statistics and hook_s_, already accounted
  // For the trace, by bucket: when it started, and the bytes that it had sent by then.
  struct Start {
    std::int64_t at_ns = 0;
    std::uint64_t sent_bytes = 0;
  };
  std::vector<Start> starts_;
  std::vector<double> started_s_;           // by bucket
  double nap_squares_ = 0.0;                // of all steps, in s^2
  BusyPeriod busy_;                         // its begin, and the sums over all steps until then
  std::size_t traced_ = 0, last_wait_ = 0;  // indices of the track's slices, for trace_wait
};

}  // namespace dp
