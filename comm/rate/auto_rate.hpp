// Computes a rank's *wish*, the bits a value that its link can carry, from the times of its own
// training steps. Pure arithmetic, without clock or network. StepWatch supplies the times;
// RateGovernor follows the smallest wish of all ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi/look_pace.hpp"
#include "comm/rate/compress_choice.hpp"
#include "comm/rate/rate_budget.hpp"
#include "kernels/base/state.hpp"

namespace dp {

// The last period of a step in which the exchange was under way without a gap. It ends when all
// sums are in place.
struct BusyPeriod {
  double begin_s = 0.0, end_s = 0.0;  // of any clock
  std::uint64_t sent_bytes = 0;       // by this rank in this period
  double codec_s = 0.0;               // the part in encoders and decoders
  double peer_wait_s = 0.0;           // the part in which another rank had not begun
  double nap_squares = 0.0;           // the sum of squares of the thread's sleeping times, in s^2

  [[nodiscard]] double wire_s() const { return end_s - begin_s - codec_s - peer_wait_s; }
  // The mean delay with which messages are noticed. A message that arrives during a nap waits on
  // average for half of the nap, and it is more likely to arrive in a long nap than in a short one.
  // The mean delay of a single message would be half of the result. The result is doubled because
  // the exchange waits for the last of several messages. When computation keeps all cores busy,
  // naps last for milliseconds.
  [[nodiscard]] double late_s() const {
    return end_s > begin_s ? nap_squares / (end_s - begin_s) : 0.0;
  }
};

// Estimates the bandwidth of a link from busy periods. With `w` the bytes of a period, `t` its time
// on the wire, `p` the time in which another rank had not begun, and `a` the part of `t` that is
// latency,
//
//     w / (t + p) <= bandwidth <= w / (t - a)
//
// An estimate outside these bounds moves to the nearer one; an estimate inside stays. Hence a
// period of few bytes, whose bounds are far apart, changes little. The result is the median of the
// last kPeriods. The kernel may send while a rank encodes or decodes, so the lower bound may be too
// high by the fraction of coding time; AutoRate corrects the consequences.
//
// On a busy machine threads wake up late, and `a` is far more than the link's latency: few bytes
// then take as long as many. Therefore `a` is the larger of two values. The first is the delay with
// which messages were noticed in the period (BusyPeriod::late_s). The second is learnt from the
// slope of time over bytes, whenever the bytes of two consecutive periods differ by more than a
// tenth. If `a` is half of `t` or more, there is no upper bound, and the estimate rises again, up
// to the bandwidth measured before the first step.
class LinkRateEstimate {
 public:
  static constexpr std::size_t kPeriods = 5;

  // `bytes_per_s`: the bandwidth measured before the first step.
  explicit LinkRateEstimate(double bytes_per_s) : bytes_per_s_(bytes_per_s), first_(bytes_per_s) {}

  // least_overhead_s: a lower bound of the time in which latencies and wake-ups kept the link idle
  // during the period.
  void add(const BusyPeriod& period, double least_overhead_s);
  // Adds a period that was mostly a wait for other ranks. Such a period only bounds the bandwidth
  // from below.
  void add_late(const BusyPeriod& period);
  [[nodiscard]] double bytes_per_s() const { return bytes_per_s_; }
  // The best estimate of the time in a period with no byte on the wire.
  [[nodiscard]] double overhead_s() const { return overhead_s_; }

 private:
  void learn_overhead(double bytes, double wire_s);
  [[nodiscard]] double median(std::array<double, kPeriods> last) const;

  double bytes_per_s_;
  double first_;
  double overhead_s_ = 0.0, learnt_s_ = 0.0;
  double last_bytes_ = 0.0, last_wire_s_ = 0.0;
  double square_sum_ = 0.0, product_sum_ = 0.0;  // of differences: bytes^2, bytes x time
  std::array<double, kPeriods> last_times_ = {};
  std::array<double, kPeriods> last_ = {};
  std::size_t count_ = 0;  // periods so far
};

// The *dense forms*, which need no entropy coding: 4 (q4), 8 (q8), 16 (bf16) or 32 bits (fp32).
struct DenseForm {
  unsigned bits;           // EncodeContext::dense_bits
  double bits_per_value;   // including the scale of each block
  std::string_view codec;  // the codec with the same payload
};
inline constexpr std::array<DenseForm, 4> kDenseForms{{{4, 4.0 + 32.0 / 2048, "q4"},
                                                       {8, 8.0 + 32.0 / 2048, "q8"},
                                                       {16, 16.0, "bf16"},
                                                       {32, 32.0, "none"}}};

// The `bits` of the dense form whose bits_per_value equals planned_bits exactly; 0 if there is no
// such form, which means that values are entropy-coded.
[[nodiscard]] unsigned dense_bits_of(double planned_bits);

// Chooses whether `auto` sends a dense form, and which one: the finest form that fits. A form fits
// if, in each of the last kPatience training steps, the links could have carried kMargin times its
// bits. When a link carries less than the form in use needs, the choice changes at once to a
// coarser form or to entropy coding. From then on, finer forms have to fit for twice as many steps
// as before. The choice is the same on all ranks, since it depends only on values that they agree
// on.
class DenseChoice {
 public:
  static constexpr double kMargin = 1.1;
  static constexpr std::int64_t kPatience = 8, kMostPatience = 1024;  // steps

  // Returns the bits a value of the next training step: the bits of a dense form, or `wished`
  // within the limits. `wished` is the smallest wish of all ranks.
  double next(double wished, const RateLimits& limits);
  void list_state(StateVisitor& visitor, const std::string& prefix);

 private:
  std::int64_t form_ = 0, steps_ = 0,
               patience_ = kPatience;  // form_: 0 for none, else 1 + index in kDenseForms
};

struct AutoRateOptions {
  double bytes_per_s = 0.0;  // of this rank's link, before the first step
  double latency_s = 0.0;    // one way
};

// One training step of this rank. All times are of one clock.
struct StepTimes {
  double begin_s = 0.0;             // the gradient could be written
  std::span<const double> ready_s;  // by bucket: when its gradients were final
  double backward_end_s = 0.0;      // all gradients were final
  double next_begin_s = 0.0;        // the next step's begin
  double exposed_s = 0.0;           // the wait of computation for the exchange
  BusyPeriod busy;
};

class AutoRate {
 public:
  // The exposed time that is tolerated, as a fraction of the step's computing time.
  static constexpr double kSlack = 0.03;
  // If more than this fraction of a period was a wait for another rank, the period does not lower
  // the estimate.
  static constexpr double kMostPeerWait = 0.2;
  // When a message arrives, the thread needs at least this time to wake up.
  static constexpr double kWakeUp_s = LookPace::kWakeUp_s;
  // After each step, the deadline of later steps moves earlier by this fraction of (exposed time -
  // slack). A negative difference moves the deadline later.
  static constexpr double kGain = 0.1;

  // `buckets` need elements and fixed bytes, but no times; hops and wire_factor are the topology's.
  AutoRate(std::vector<BudgetBucket> buckets, std::size_t hops, double wire_factor,
           const AutoRateOptions& options);

  void add(const StepTimes& step);
  // Forgets the times of steps, because later steps will differ; keeps the estimate of the link.
  void forget_times() { steps_ = 0; }
  // The result is not yet limited to RateLimits. It is valid if is_known().
  [[nodiscard]] RateBudget budget() const { return budget_; }
  [[nodiscard]] bool is_known() const { return steps_ > 0; }
  [[nodiscard]] double bytes_per_s() const { return link_.bytes_per_s(); }

 private:
  std::vector<BudgetBucket> buckets_;  // their times are means over the last steps
  std::size_t hops_;
  double wire_factor_;
  AutoRateOptions options_;
  LinkRateEstimate link_;
  double backward_end_s_ = 0.0, compute_s_ = 0.0;  // means, from a step's begin
  double codec_s_ = 0.0;                           // mean of a busy period
  // The exchange must end this much earlier than in the model, because the model leaves out coding
  // time that neither computation nor the wire hides. The margin is learnt from the exposed time
  // without other ranks' delays. It is at most the coding time, because fewer bits would not reduce
  // any other exposed time.
  double margin_s_ = 0.0;
  std::uint64_t steps_ = 0;
  RateBudget budget_;
};

}  // namespace dp
