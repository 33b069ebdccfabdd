// Measures the time that the reducer's thread spends in codecs and hooks.
#pragma once

#include <chrono>

#include "kernels/base/trace.hpp"

namespace dp {

// Measures the time from its construction to its destruction. Adds this time to a sum and, if there
// is a track, adds a slice to the track. `slice` describes the slice; the stopwatch fills in its
// begin and end.
class Stopwatch {
 public:
  Stopwatch(double& sum_s, TraceTrack* track, const TraceEvent& slice)
      : sum_s_(sum_s), track_(track), slice_(slice) {}
  ~Stopwatch() {
    const TraceClock::time_point end = TraceClock::now();
    sum_s_ += std::chrono::duration<double>(end - start_).count();
    if (track_ == nullptr) return;
    slice_.begin_ns = trace_ns(start_);
    slice_.end_ns = trace_ns(end);
    track_->add(slice_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Sets the size of a payload that was encoded in this time.
  void set_bytes(std::size_t bytes) { slice_.bytes = bytes; }

 private:
  double& sum_s_;
  TraceTrack* track_;
  TraceEvent slice_;
  TraceClock::time_point start_ = TraceClock::now();
};

}  // namespace dp
