// What a rank wishes the rate to be, from the times of its own steps: pure arithmetic, without
// clock or network. StepWatch feeds it; RateGovernor obeys the least wish of all ranks.
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

// The last time of a step in which the exchange was under way without a gap. It ends when all sums
// are in place.
struct BusyPeriod {
  double begin_s = 0.0, end_s = 0.0;  // of any clock
  std::uint64_t sent_bytes = 0;       // in it, by this rank
  double codec_s = 0.0;               // of it, in encoders and decoders
  double peer_wait_s = 0.0;           // of it, while another rank had not begun
  double nap_squares = 0.0;           // the squares of the times for which the thread slept, added

  [[nodiscard]] double wire_s() const { return end_s - begin_s - codec_s - peer_wait_s; }
  // How late a message is found. One that comes at any time of a nap waits for half of it in the
  // mean, and naps meet it in proportion to their lengths; but of several messages the last one
  // counts: twice that. Where computation keeps all cores busy, naps last for milliseconds.
  [[nodiscard]] double late_s() const {
    return end_s > begin_s ? nap_squares / (end_s - begin_s) : 0.0;
  }
};

// Estimates what a link carries from busy periods. With w the bytes of a period, t its time on the
// wire, p that in which another rank had not begun, and a the part of t that is latency,
//
//     w / (t + p) <= rate <= w / (t - a)
//
// so an estimate outside of these bounds moves to the nearer one, and one inside stays: a period of
// few bytes says little, and changes little. The result is the median of the last kPeriods. While a
// rank encodes or decodes, the kernel may still send, so the lower bound may be too high by the
// share of coding; AutoRate corrects what follows from it.
//
// On a busy machine threads wake up late, and a is far more than what the link's latency explains:
// fewer bytes then take as long as more. So a has two sources, of which the larger one counts: how
// late messages were found in the period (BusyPeriod::late_s), and what is learnt whenever the
// bytes of two periods in a row differ by more than a tenth, from the slope of the time over the
// bytes. Where a is half of t, or more, there is no upper bound, and the estimate rises again, up
// to what was measured before the first step.
class LinkRateEstimate {
 public:
  static constexpr std::size_t kPeriods = 5;

  // What was measured before the first step.
  explicit LinkRateEstimate(double bytes_per_s) : bytes_per_s_(bytes_per_s), first_(bytes_per_s) {}

  // least_overhead_s: what passes without a byte on the wire, such as latencies and wake-ups.
  void add(const BusyPeriod& period, double least_overhead_s);
  // A period most of which went by for other ranks: it bounds the rate from below alone.
  void add_late(const BusyPeriod& period);
  [[nodiscard]] double bytes_per_s() const { return bytes_per_s_; }
  // What passes without a byte on the wire, as far as it is known.
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
  std::size_t count_ = 0;  // so far
};

// The forms of values that need no coding: 4 (q4), 8 (q8), 16 (bf16) or 32 bits (fp32).
struct DenseForm {
  unsigned bits;           // EncodeContext::dense_bits
  double bits_per_value;   // with the scale of each block
  std::string_view codec;  // that sends the same
};
inline constexpr std::array<DenseForm, 4> kDenseForms{{{4, 4.0 + 32.0 / 2048, "q4"},
                                                       {8, 8.0 + 32.0 / 2048, "q8"},
                                                       {16, 16.0, "bf16"},
                                                       {32, 32.0, "none"}}};

// The form whose bits a plan has, exactly; 0: none, the values are coded.
[[nodiscard]] unsigned dense_bits_of(double planned_bits);

// Whether auto sends a dense form: the finest of which the link has carried somewhat more for some
// steps. It goes back at once where the link carries less, and then waits twice as long. The same
// on all ranks, since it follows from what they have agreed on.
class DenseChoice {
 public:
  static constexpr double kMargin = 1.1;
  static constexpr std::int64_t kPatience = 8, kMostPatience = 1024;  // steps

  // The bits of the next step: a dense form's, or within the limits. `wished`: what all links
  // carry.
  double next(double wished, const RateLimits& limits);
  void list_state(StateVisitor& visitor, const std::string& prefix);

 private:
  std::int64_t form_ = 0, steps_ = 0,
               patience_ = kPatience;  // form_: 0, or one more than its place
};

struct AutoRateOptions {
  double bytes_per_s = 0.0;  // of this rank's link, before the first step
  double latency_s = 0.0;    // one way
};

// One step of this rank. Times are of one clock.
struct StepTimes {
  double begin_s = 0.0;             // the gradient may be written
  std::span<const double> ready_s;  // by bucket: its gradients are final
  double backward_end_s = 0.0;      // all are
  double next_begin_s = 0.0;        // the next step's begin
  double exposed_s = 0.0;           // computation stood still for the exchange
  BusyPeriod busy;
};

class AutoRate {
 public:
  // What may stay exposed, as a share of the step's computation.
  static constexpr double kSlack = 0.03;
  // With a wait for another rank of more than this share, a period does not lower the estimate.
  static constexpr double kMostPeerWait = 0.2;
  // At least, for each message that follows from another one.
  static constexpr double kWakeUp_s = LookPace::kWakeUp_s;
  // The share of a step's exposed time beyond the slack that is taken off the next steps' time.
  static constexpr double kGain = 0.1;

  // `buckets` say elements and fixed bytes; hops and wire_factor are those of the topology.
  AutoRate(std::vector<BudgetBucket> buckets, std::size_t hops, double wire_factor,
           const AutoRateOptions& options);

  void add(const StepTimes& step);
  // Steps will be unlike those so far; what is known of the link stays.
  void forget_times() { steps_ = 0; }
  // Without limits; nothing is known before the first step.
  [[nodiscard]] RateBudget budget() const { return budget_; }
  [[nodiscard]] bool is_known() const { return steps_ > 0; }
  [[nodiscard]] double bytes_per_s() const { return link_.bytes_per_s(); }

 private:
  std::vector<BudgetBucket> buckets_;  // with mean times of the last steps
  std::size_t hops_;
  double wire_factor_;
  AutoRateOptions options_;
  LinkRateEstimate link_;
  double backward_end_s_ = 0.0, compute_s_ = 0.0;  // from a step's begin, means
  double codec_s_ = 0.0;                           // of a busy period, mean
  // By how much the exchange must end earlier than the model says, for as much of coding as neither
  // computation nor the wire hides. It is learnt from the exposed time, other ranks' delays taken
  // off, and never more than coding takes: what else is exposed would not become less.
  double margin_s_ = 0.0;
  std::uint64_t steps_ = 0;
  RateBudget budget_;
};

}  // namespace dp
