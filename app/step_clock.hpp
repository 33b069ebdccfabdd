// Where the time of steps goes, told by marks in the device's queue, so that measuring makes nobody
// wait. On a GPU a step's times are known when the next step's gradients have been computed.
//
//     before | forward | backward | exposed communication | update
//     ^ the last update's end                             ^ the sums are in place
//
// "Before" is the time in which the device waited: for the batch (data) or for the loop (other).
// The parts are the whole of the time from update to update.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "app/times.hpp"
#include "kernels/device.hpp"

namespace dp {

class StepClock {
 public:
  explicit StepClock(Device& device) : device_(device), marks_(device.make_time_marks(kMarks)) {}

  // Before the first step of an epoch: time up to here belongs to none.
  void begin() {
    device_.synchronize();
    is_pending_ = false;
    marks_->mark(kUpdated + (parity_ ^ 1u));
  }
  void step_begins() { marks_->mark(kBegin); }
  // These two may be part of a recording.
  void forward_ended() { marks_->mark(kForward); }
  void backward_ended() { marks_->mark(kBackward); }
  // A step without a batch of its own.
  void nothing_computed() {
    forward_ended();
    backward_ended();
  }
  // The host knows that backward has ended, and the sums are in place. data_s: what the loop waited
  // for the batch.
  void exchanged(double data_s) {
    complete();
    before_ = marks_->seconds(kUpdated + (parity_ ^ 1u), kBegin);
    current_ = {.data = std::min(data_s, before_),
                .forward = marks_->seconds(kBegin, kForward),
                .backward = marks_->seconds(kForward, kBackward)};
    marks_->mark(kExchanged + parity_);
  }
  void updated() {
    marks_->mark(kUpdated + parity_);
    parity_ ^= 1u;
    is_pending_ = true;
  }

  // The times of the steps that were not taken yet, as far as they are known; with `all` the host
  // waits until that is all of them.
  LoopTimes take(bool all) {
    if (all || device_.kind() == DeviceKind::cpu) {
      device_.synchronize();
      complete();
    }
    return std::exchange(known_, {});
  }

 private:
  // The step whose update was the last one marked.
  void complete() {
    if (!is_pending_) return;
    is_pending_ = false;
    const std::size_t last = parity_ ^ 1u;
    const double whole = marks_->seconds(kUpdated + parity_, kUpdated + last);
    current_.optimizer = marks_->seconds(kExchanged + last, kUpdated + last);
    current_.other = before_ - current_.data;
    current_.exposed_comm =
        std::max(0.0, whole - before_ - current_.forward - current_.backward - current_.optimizer);
    known_ += current_;
  }

  // Two of those that are read a step later.
  enum : std::size_t { kBegin, kForward, kBackward, kExchanged, kUpdated = kExchanged + 2 };
  static constexpr std::size_t kMarks = kUpdated + 2;

  Device& device_;
  std::unique_ptr<TimeMarks> marks_;
  std::size_t parity_ = 0;
  bool is_pending_ = false;
  double before_ = 0;
  LoopTimes current_, known_;
};

}  // namespace dp
