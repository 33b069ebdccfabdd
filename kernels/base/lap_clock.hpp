// A clock that divides time into consecutive parts without gaps.
#pragma once

#include <chrono>

namespace dp {

// Each lap() ends one part and begins the next.
class LapClock {
 public:
  LapClock() : last_(Clock::now()) {}
  // Seconds since the last lap.
  double lap() {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_;
};

}  // namespace dp
