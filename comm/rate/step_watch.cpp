#include "comm/rate/step_watch.hpp"

#include <algorithm>
#include <utility>

namespace dp {

StepWatch::StepWatch(AutoRate rate, std::size_t buckets)
    : rate_(std::move(rate)), ready_s_(buckets) {}

void StepWatch::last_is_over(double now_s, std::span<const double> started_s, double hidden_share) {
  if (!std::exchange(has_times_, false)) return;
  times_.ready_s = ready_s_;
  if (!started_s.empty()) {
    times_.ready_s = started_s;
    times_.backward_end_s = std::ranges::max(times_.ready_s);
  }
  times_.next_begin_s = now_s;
  times_.backward_end_s += hidden_share * std::max(0.0, now_s - times_.begin_s - times_.exposed_s);
  rate_.add(times_);
}

void StepWatch::sums_are_there(double exposed_s, const BusyPeriod& busy) {
  times_.exposed_s = exposed_s;
  times_.busy = busy;
  has_times_ = true;
}

void StepWatch::forget() {
  has_times_ = false;
  rate_.forget_times();
}

}  // namespace dp
