// Collects the times of this rank's training steps for `auto` (auto_rate.hpp). The times of a step
// are added to the estimate when the next step begins.
//
// The calls of a step, in their order:
//     last_is_over     the previous step is over, and its times are complete
//     begin            the gradient may be written
//     bucket_final, backward_ends
//     sums_are_there   training goes on
//
// The caller reads the clock; all times are of the same clock. Nothing here communicates or fails.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/rate/auto_rate.hpp"

namespace dp {

class StepWatch {
 public:
  StepWatch(AutoRate rate, std::size_t buckets);

  // started_s: by bucket, the time at which the bucket's exchange began. It is used on a GPU,
  // because the host does not know when the GPU's gradients became final; otherwise it is empty.
  // hidden_share: see RatedRound.
  void last_is_over(double now_s, std::span<const double> started_s, double hidden_share);
  void begin(double now_s) { times_ = {.begin_s = now_s, .ready_s = {}, .busy = {}}; }
  void bucket_final(std::size_t bucket, double now_s) { ready_s_[bucket] = now_s; }
  void backward_ends(double now_s) { times_.backward_end_s = now_s; }
  // exposed_s: the time for which computation waited for the exchange.
  void sums_are_there(double exposed_s, const BusyPeriod& busy);
  // Forgets the times of steps, because later steps will differ. Keeps the estimate of the link.
  void forget();

  [[nodiscard]] const AutoRate& rate() const { return rate_; }

 private:
  AutoRate rate_;
  std::vector<double> ready_s_;  // by bucket
  StepTimes times_;
  bool has_times_ = false;  // times_ has a step that was not added to rate_ yet
};

}  // namespace dp
