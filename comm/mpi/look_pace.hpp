// How long to sleep between two polls ("looks") of the network.
//
// MPI moves bytes only during a look, and a look takes about ten microseconds of processor time
// that the computation could use. An event is a message sent or received. With four looks between
// two events, an event is noticed with a mean delay of an eighth of the time between events. The
// link does not idle meanwhile: several segments are on it at once, and the kernel's socket buffers
// hold more bytes than the link carries during the longest sleep.
#pragma once

#include <algorithm>

namespace dp {

class LookPace {
 public:
  static constexpr double kLeast_s = 50e-6, kMost_s = 1.5e-3, kLooks = 4.0;
  // After a sleep ends, a thread takes about this time to wake up and handle a message.
  static constexpr double kWakeUp_s = 0.3e-3;

  // Call it when something has moved. Any monotonic clock will do.
  void moved(double now_s) {
    const double gap_s = std::min(now_s - moved_s_, kLooks * kMost_s);
    usual_gap_s_ += (gap_s - usual_gap_s_) / kMemory;
    moved_s_ = now_s;
  }
  [[nodiscard]] double sleep_s() const {
    return std::clamp(usual_gap_s_ / kLooks, kLeast_s, kMost_s);
  }

 private:
  static constexpr double kMemory = 8.0;  // how many gaps the mean covers
  double usual_gap_s_ = 0.0, moved_s_ = 0.0;
};

}  // namespace dp
