// The times of this rank's steps, as auto needs them (auto_rate.hpp): gathers them in the course of
// a step and adds them to the estimate when the next step begins.
//
// The calls of a step, in their order:
//     last_is_over     the step before is over, and its times are complete
//     begin            the gradient may be written
//     bucket_final, backward_ends
//     sums_are_there   training goes on
//
// The caller reads the clock; all times are of one. Nothing here communicates or fails.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/rate/auto_rate.hpp"

namespace dp {

class StepWatch {
 public:
  StepWatch(AutoRate rate, std::size_t buckets);

  // started_s: by bucket, when its exchange began, if nobody knows when its gradients became final
  // (a GPU); otherwise empty. hidden_share: the fraction of the computing time between two
  // exchanges that overlaps an exchange, in addition to backward.
  void last_is_over(double now_s, std::span<const double> started_s, double hidden_share);
  void begin(double now_s) { times_ = {.begin_s = now_s, .ready_s = {}, .busy = {}}; }
  void bucket_final(std::size_t bucket, double now_s) { ready_s_[bucket] = now_s; }
  void backward_ends(double now_s) { times_.backward_end_s = now_s; }
  // exposed_s: computation stood still for the exchange.
  void sums_are_there(double exposed_s, const BusyPeriod& busy);
  // Steps will be unlike those so far. The estimate of the link stays.
  void forget();

  [[nodiscard]] const AutoRate& rate() const { return rate_; }

 private:
  AutoRate rate_;
  std::vector<double> ready_s_;  // by bucket
  StepTimes times_;
  bool has_times_ = false;  // of a step that rate_ does not have yet
};

}  // namespace dp
