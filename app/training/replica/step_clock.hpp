// Measures how the time of a step divides into the parts below. The time marks are put into the
// device's queue, so that nothing waits for the measurement. On a GPU a step's times are known when
// the next step's gradients have been computed.
//
//     before | forward | backward | exposed communication | update
//     ^ the last update's end                             ^ the sums are in place
//
// "Before" is the time that the device waited for the batch (data) or for the loop (other). The
// five times add up to the time from update to update.
//
// These times are also the slices of a trace (kernels/base/trace.hpp). On a CPU, a slice begins and
// ends when its marks were made. A GPU's marks only give the time between two of them, so a GPU's
// slices are laid end to end. The first slice begins where the trace's window or the epoch begins,
// because the host has just waited for the GPU there (begin()).
//
// An exchange may come after the update (app/training/replica/sync_policy.hpp). The time of such an
// exchange counts as exposed communication, not as a part of the update.
//
// If a step computes its images in several parts, a CPU's trace has one forward and one backward
// slice for each part. A GPU's trace has only one of each for the whole step.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "app/output/times.hpp"
#include "kernels/base/trace.hpp"
#include "kernels/device.hpp"

namespace dp {

class StepClock {
 public:
  // `trace` gets the slices; null: no trace.
  StepClock(Device& device, TraceTrack* trace)
      : device_(device), marks_(device.make_time_marks(kMarks)), trace_(trace) {}

  // Call it before the first step of an epoch, because the time since the last step belongs to no
  // step.
  void begin() {
    device_.synchronize();
    complete();
    mark(kUpdated + (parity_ ^ 1u));
  }
  void step_begins(std::uint64_t step) {
    step_ = step;
    if (trace_ != nullptr && !is_cpu() && trace_->begins_with(step)) {
      begin();
    }
    mark(kBegin);
    first_begin_ns_ = host_ns_[kBegin];
    earlier_ = {};
  }
  // Call it for each part after the first. It waits until the device has computed the part before.
  void part_begins() {
    device_.synchronize();
    complete();
    if (earlier_.between == 0) {
      earlier_.before_first = marks_->seconds(kUpdated + (parity_ ^ 1u), kBegin);
    }
    earlier_.times.forward += marks_->seconds(kBegin, kForward);
    earlier_.times.backward += marks_->seconds(kForward, kBackward);
    if (trace_ != nullptr && is_cpu()) add_part();
    mark(kBegin);
    device_.synchronize();
    earlier_.between += std::max(marks_->seconds(kBackward, kBegin), kLeast_s);
  }
  // These two calls may be recorded, for example in a CUDA graph.
  void forward_ended() { mark(kForward); }
  void backward_ended() { mark(kBackward); }
  // For a step without a batch on this rank.
  void nothing_computed() {
    forward_ended();
    backward_ended();
  }
  // These three calls are for a step whose update may be enqueued before exchanged() is called.
  // First call expect_early_update(), which waits until the device has made the last step's update.
  // Another thread may then make the other two calls, before and after it enqueues the update.
  // exchanged() and updated() do not repeat the marks.
  void expect_early_update() { complete(); }
  void early_update_begins() { mark(kExchanged + parity_); }
  void early_update_ends() {
    mark(kUpdated + parity_);
    is_updated_early_ = true;
  }
  // Call it when the host knows that backward has ended and the sums are in place. data_s: how long
  // the loop waited for the batch. forward_wait_s, backward_wait_s: how long the passes waited for
  // values of all ranks, which counts as exposed communication.
  void exchanged(double data_s, double forward_wait_s, double backward_wait_s) {
    complete();
    before_ = earlier_.between > 0 ? earlier_.before_first + earlier_.between
                                   : marks_->seconds(kUpdated + (parity_ ^ 1u), kBegin);
    double forward = earlier_.times.forward + marks_->seconds(kBegin, kForward) - forward_wait_s;
    double backward =
        earlier_.times.backward + marks_->seconds(kForward, kBackward) - backward_wait_s;
    // A rank without images makes both marks after the waits of both passes, so `backward` is below
    // 0, and `forward` is too large by the same amount.
    forward += std::min(backward, 0.0);
    backward = std::max(backward, 0.0);
    current_ = {.data = std::min(data_s, before_),
                .forward = std::max(forward, 0.0),
                .backward = backward,
                .statistics = forward_wait_s + backward_wait_s};
    if (!is_updated_early_) mark(kExchanged + parity_);
  }
  // Call these two between exchanged() and updated(), around an exchange that comes after the
  // update. If training waits for only a part of the exchange, call them around that part. If there
  // are several such pairs, the time from the first begin to the last end counts.
  void exchange_begins() {
    if (has_late_) return;
    has_late_ = true;
    mark(kLateBegin + parity_);
  }
  void exchange_ends() { mark(kLateEnd + parity_); }
  void updated() {
    if (!std::exchange(is_updated_early_, false)) mark(kUpdated + parity_);
    has_pending_late_ = std::exchange(has_late_, false);
    if (trace_ != nullptr && is_cpu()) {
      const std::int64_t end_ns = host_ns_[kUpdated + parity_];
      const std::int64_t late_ns = host_ns_[kLateBegin + parity_];
      add_slices(step_,
                 {host_ns_[kUpdated + (parity_ ^ 1u)], host_ns_[kBegin], host_ns_[kForward],
                  host_ns_[kBackward], host_ns_[kExchanged + parity_], end_ns},
                 has_pending_late_ ? late_ns : end_ns);
      if (has_pending_late_) {
        const std::int64_t late_end_ns = host_ns_[kLateEnd + parity_];
        add_slice(step_, TraceKind::exposed_comm, late_ns, late_end_ns);
        add_slice(step_, TraceKind::optimizer, late_end_ns, end_ns);
      }
    }
    parity_ ^= 1u;
    is_pending_ = true;
    pending_step_ = step_;
  }

  // Returns the times that have become known since the last call. all: waits until the times of all
  // steps so far are known.
  LoopTimes take(bool all) {
    if (all || is_cpu()) {
      device_.synchronize();
      complete();
    }
    return std::exchange(known_, {});
  }

 private:
  // Computes the times of the step whose update was marked last.
  void complete() {
    if (!is_pending_) return;
    is_pending_ = false;
    const std::size_t last = parity_ ^ 1u;
    const double whole = marks_->seconds(kUpdated + parity_, kUpdated + last);
    current_.optimizer = marks_->seconds(kExchanged + last, kUpdated + last);
    if (has_pending_late_) {
      current_.optimizer -= marks_->seconds(kLateBegin + last, kLateEnd + last);
      current_.optimizer = std::max(current_.optimizer, 0.0);
    }
    current_.other = before_ - current_.data;
    current_.exposed_comm =
        std::max(0.0, whole - before_ - current_.forward - current_.backward - current_.optimizer);
    current_.steps = 1;
    known_ += current_;
    if (trace_ != nullptr && !is_cpu()) trace_known(whole, last);
  }

  [[nodiscard]] bool is_cpu() const { return device_.kind() == DeviceKind::cpu; }
  void mark(std::size_t i) {
    marks_->mark(i);
    if (trace_ != nullptr) host_ns_[i] = trace_clock_ns();
  }

  static std::int64_t ns(double seconds) { return std::llround(seconds * 1e9); }

  // Adds the slices of a GPU's step whose times have become known.
  void trace_known(double whole_s, std::size_t last) {
    const std::int64_t start = host_ns_[kUpdated + parity_], begin = start + ns(before_);
    const std::int64_t forward = begin + ns(current_.forward);
    const std::int64_t backward = forward + ns(current_.backward);
    const std::int64_t end = std::max(backward, start + ns(whole_s));
    const std::int64_t exchanged = std::max(backward, end - ns(current_.optimizer));
    add_slices(pending_step_, {start, begin, forward, backward, exchanged, end}, end);
    host_ns_[kUpdated + last] = end;
  }

  void add_slice(std::uint64_t step, TraceKind kind, std::int64_t begin_ns, std::int64_t end_ns) {
    trace_->add({.begin_ns = begin_ns,
                 .end_ns = end_ns,
                 .step = static_cast<std::uint32_t>(step),
                 .kind = kind});
  }

  // Adds a CPU's slices for one part of a step. The step's last part is added by add_slices().
  void add_part() {
    add_slice(step_, TraceKind::forward, host_ns_[kBegin], host_ns_[kForward]);
    add_slice(step_, TraceKind::backward, host_ns_[kForward], host_ns_[kBackward]);
  }

  // at: six times: when the step started, when the computation of its last part began, when forward
  // ended, when backward ended, when the sums were in place, and when the step ended. update_end:
  // when the optimiser's update ended. The step may end later, because an exchange may follow the
  // update.
  void add_slices(std::uint64_t step, const std::array<std::int64_t, 6>& at,
                  std::int64_t update_end) {
    add_slice(step, TraceKind::step, at[0], at[5]);
    // The loop waited for the batch just before the computation began. The waits for the batches of
    // later parts are added here, as if the loop had waited for all batches at once.
    const std::int64_t begin_ns = is_cpu() ? first_begin_ns_ : at[1], data_ns = ns(current_.data);
    if (data_ns > 0) {
      add_slice(step, TraceKind::data, std::max(at[0], begin_ns - data_ns), begin_ns);
    }
    add_slice(step, TraceKind::forward, at[1], at[2]);
    add_slice(step, TraceKind::backward, at[2], at[3]);
    add_slice(step, TraceKind::exposed_comm, at[3], at[4]);
    add_slice(step, TraceKind::optimizer, at[4], update_end);
  }

  // Marks from kExchanged on exist twice, for even and odd steps, because they are read one step
  // later.
  enum : std::size_t {
    kBegin,
    kForward,
    kBackward,
    kExchanged,
    kLateBegin = kExchanged + 2,
    kLateEnd = kLateBegin + 2,
    kUpdated = kLateEnd + 2
  };
  static constexpr std::size_t kMarks = kUpdated + 2;

  Device& device_;
  std::unique_ptr<TimeMarks> marks_;
  TraceTrack* trace_;
  // With a trace: when each mark was made. On a GPU, only the entries of updates are used; they say
  // when the device reached the marks.
  std::array<std::int64_t, kMarks> host_ns_ = {};
  std::int64_t first_begin_ns_ = 0;  // of the step's first part
  std::uint64_t step_ = 0, pending_step_ = 0;
  std::size_t parity_ = 0;
  bool is_pending_ = false;
  bool is_updated_early_ = false;
  bool has_late_ = false, has_pending_late_ = false;
  double before_ = 0;
  // For a step in several parts: the times of its earlier parts. Waiting between parts counts as
  // time before the step. Each wait adds at least kLeast_s, because between == 0 means that the
  // step has had only one part.
  static constexpr double kLeast_s = 1e-12;
  struct PartTimes {
    double before_first = 0, between = 0;
    LoopTimes times = {};
  };
  PartTimes earlier_;
  LoopTimes current_, known_;
};

}  // namespace dp
