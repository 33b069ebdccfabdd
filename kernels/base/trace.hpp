// Time slices of threads, for dptrain's --trace (io/files/trace_file.hpp writes them).
//
// A *track* is the list of one thread's *slices*, each with its begin and end on the host's steady
// clock. A track records a *window* of training steps. The track's memory is allocated before the
// window begins; slices that do not fit are dropped and counted. Code that can be traced takes a
// TraceTrack*, which is null when tracing is off and then costs one branch. Only one thread at a
// time may use a track. No function of this file fails.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace dp {

// The activity that a slice shows. The kind also decides what `id` means. On the training loop's
// track, each slice is a training step, a part of a step (named as in the run log), or a layer. On
// the reducer's track, all slices except buckets follow each other without overlap.
enum class TraceKind : std::uint8_t {
  // the training loop
  step,
  data,
  forward,
  backward,
  exposed_comm,
  optimizer,
  loss,
  layer_forward,  // id: the node of the graph
  layer_backward,
  gather_wait,  // a layer waits for floats of all ranks (comm/mpi/prompt_gather.hpp)
  // the reducer's thread; id: the bucket
  bucket,  // from the exchange's start until the sum is in place
  encode,
  decode,
  wire_wait,
  peer_wait,    // waits for a rank that has not begun the bucket
  p_factor,     // powersgd: P = M Q of a tensor; `segment`: its number in the bucket
  q_factor,     // Q = M^T P, after P is made orthonormal
  p_q_product,  // the delivered P Q^T
  hook,         // the caller's work before or after the exchange
  gather        // an exchange of floats among all ranks, besides the buckets
};

struct TraceEvent {
  std::int64_t begin_ns = 0, end_ns = 0;  // trace_clock_ns()
  std::uint64_t bytes = 0;                // of the payload; for a bucket: bytes sent
  std::uint32_t step = 0;                 // from 0
  std::uint32_t id = 0;
  std::uint32_t segment = 0;  // of the bucket
  TraceKind kind = TraceKind::step;
  bool is_total = false;  // true: the payload is the complete sum; false: a partial one
};

using TraceClock = std::chrono::steady_clock;

[[nodiscard]] inline std::int64_t trace_ns(TraceClock::time_point moment) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(moment.time_since_epoch()).count();
}
[[nodiscard]] inline std::int64_t trace_clock_ns() { return trace_ns(TraceClock::now()); }

class TraceTrack {
 public:
  // Call before the first training step. Allocates the memory and sets the window of steps.
  void reserve(std::size_t events) {
    // The memory is left uninitialised, so that unused pages are never touched. Reserving enough
    // for the largest network therefore costs small ones nothing.
    memory_.reset(static_cast<TraceEvent*>(::operator new(events * sizeof(TraceEvent))));
    capacity_ = events;
    count_ = 0;
  }
  void set_window(std::uint64_t first_step, std::uint64_t steps) {
    first_ = first_step;
    steps_ = steps;
  }

  [[nodiscard]] bool covers(std::uint64_t step) const { return step - first_ < steps_; }
  [[nodiscard]] bool begins_with(std::uint64_t step) const { return steps_ > 0 && step == first_; }
  // Called by the recording thread. Slices recorded from now on belong to this training step.
  void begin_step(std::uint64_t step) {
    step_ = static_cast<std::uint32_t>(step);
    is_on_ = covers(step);
  }
  [[nodiscard]] bool is_on() const { return is_on_; }
  [[nodiscard]] std::uint32_t step() const { return step_; }

  // Adds a slice. It is dropped if the window does not cover event.step.
  void add(const TraceEvent& event) {
    if (!covers(event.step)) return;
    if (count_ == capacity_) {
      ++left_out_;
    } else {
      memory_.get()[count_++] = event;
    }
  }

  [[nodiscard]] std::span<TraceEvent> events() { return {memory_.get(), count_}; }
  [[nodiscard]] std::size_t left_out() const { return left_out_; }

 private:
  struct Free {
    void operator()(TraceEvent* events) const { ::operator delete(events); }
  };
  std::unique_ptr<TraceEvent, Free> memory_;
  std::size_t capacity_ = 0, count_ = 0, left_out_ = 0;
  std::uint64_t first_ = 0, steps_ = 0;
  std::uint32_t step_ = 0;
  bool is_on_ = false;
};

// A slice of the current training step, from this object's construction to its destruction.
class TraceSlice {
 public:
  TraceSlice(TraceTrack* track, TraceKind kind, std::size_t id = 0)
      : track_(track != nullptr && track->is_on() ? track : nullptr), kind_(kind) {
    if (track_ == nullptr) return;
    id_ = static_cast<std::uint32_t>(id);
    begin_ns_ = trace_clock_ns();
  }
  ~TraceSlice() {
    if (track_ == nullptr) return;
    track_->add({.begin_ns = begin_ns_,
                 .end_ns = trace_clock_ns(),
                 .step = track_->step(),
                 .id = id_,
                 .kind = kind_});
  }
  TraceSlice(const TraceSlice&) = delete;
  TraceSlice& operator=(const TraceSlice&) = delete;

 private:
  TraceTrack* track_;
  TraceKind kind_;
  std::uint32_t id_ = 0;
  std::int64_t begin_ns_ = 0;
};

}  // namespace dp
