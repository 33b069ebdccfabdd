// Measures what exchanges cost: seconds and bytes, by bucket and in total, and the waits that a
// trace shows.
//
// A bucket is *in flight* from its start until its exchange is done. The reducer's thread calls
// account() after each look at the network; the time since the last call then belongs to every
// bucket in flight, and once to the total. So the buckets' times overlap, and the total's do not:
//     comm       the time with a bucket in flight, and of the total that of other exchanges
//     encode     of it, in encoders and in the caller's hooks; decode: in decoders
//     peer_wait  of the rest, while a rank has not begun the oldest bucket in flight
//     wire       what remains
//
// The clock is a parameter, so that tests can set it. One thread uses a meter. Only take()
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
  double comm_s = 0.0;    // wall time with a bucket (this bucket) in flight
  double encode_s = 0.0;  // of it, inside codecs and the caller's hooks
  double decode_s = 0.0;
  double peer_wait_s = 0.0;  // of it, idle because a rank has not begun its oldest bucket in flight
  double wire_s = 0.0;       // the rest
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_messages = 0;
  // From the encodes that were examined: errors of one segment per step and bucket, saturation in
  // the steps of Reducer::sample_error().
  EncodeSample::Sums sampled;
  double residual_squares = 0.0;  // the sum of squares of the residual now
  // From sample_error(): the squares of delivered - exact sum and of the exact sum over the sampled
  // values, the same on all ranks; and the bytes that this rank has sent for it, which are not part
  // of sent_bytes.
  double delivered_error_squares = 0.0;
  double delivered_value_squares = 0.0;
  std::uint64_t sample_bytes = 0;
  // Of all buckets' total alone: what operations have gathered. Its time is part of comm_s, its
  // bytes are not part of sent_bytes.
  GatherCost gathered;

  [[nodiscard]] double relative_error() const;  // sqrt(error squares / value squares)
  [[nodiscard]] double saturation() const;      // the share of values; 0 if none was examined
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

  // `exchanges` outlives the meter; a bucket's exchange may change between steps. `trace` gets the
  // buckets' slices and the waits between the codecs' slices; null: no trace.
  ExchangeMeter(Exchanges exchanges, TraceTrack* trace,
                std::function<Clock::time_point()> now = &Clock::now);

  // The time until now belongs to no bucket.
  void skip() { accounted_ = now_(); }
  // The time since the last skip() or account() belongs to the buckets of [first, end) that are not
  // done, and to the total.
  void account(std::size_t first, std::size_t end);
  // The same time, in which no bucket was in flight and an operation has gathered, belongs to the
  // total.
  void account_gathering();
  // The same, where little was sent and the time went into waiting for ranks that come later.
  void account_waiting();
  // Adds the time of the caller's work on a bucket. Call it before the account() that covers that
  // time. A bucket that is done counts as in flight again for this time.
  void add_hook(std::size_t bucket, double hook_s);
  void add_error(std::size_t bucket, const ErrorSample::Result& result);

  // The begin and the end of a bucket's slice in the trace.
  void bucket_starts(std::size_t bucket);
  void bucket_delivered(std::size_t bucket);

  // By bucket: when it started last.
  [[nodiscard]] std::span<const double> started_s() const { return started_s_; }

  // Nothing is in flight: a busy period may begin with the next look.
  void busy_begins();
  // The thread has slept while something was in flight.
  void add_nap(double nap_s) { nap_squares_ += nap_s * nap_s; }
  // The period since the last busy_begins().
  [[nodiscard]] BusyPeriod busy_until_now() const;

  // Returns all that was measured since the last call, without residual_squares. Clears the
  // exchanges' statistics.
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
  BusyPeriod busy_;                         // when it began, and what all steps had cost by then
  std::size_t traced_ = 0, last_wait_ = 0;  // of the track's slices: seen by trace_wait, its last
};

}  // namespace dp
