// An action that a caller hands to a thread, to be called at a certain moment. If that moment has
// passed, the action is refused, and the caller does its work itself.
#pragma once

#include <atomic>
#include <functional>

namespace dp {

class FollowUp {
 public:
  using Action = std::function<void()>;

  // For the caller: a new moment lies ahead. The thread must not be in take().
  void reset() { action_.store(nullptr, std::memory_order_relaxed); }
  // For the caller, once after reset(). Ignored if the moment has passed. The action must exist
  // until the thread has finished the job that calls take().
  void offer(const Action& action) {
    const Action* expected = nullptr;
    action_.compare_exchange_strong(expected, &action, std::memory_order_acq_rel);
  }
  // For the thread: the moment. Returns the action, or null if none was offered.
  [[nodiscard]] const Action* take() {
    return action_.exchange(&kPassed, std::memory_order_acq_rel);
  }

 private:
  inline static const Action kPassed = {};  // only its address counts

  std::atomic<const Action*> action_ = nullptr;
};

}  // namespace dp
