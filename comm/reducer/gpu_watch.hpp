// Watches the GPU whose gradients a reducer exchanges. On a GPU that has failed or hangs,
// gradients never become final, and the reducer would wait forever. Therefore its thread checks it
// for failures now and then, and registers a wait (Device::waits) while only the GPU can advance
// the step.
#pragma once

#include <chrono>
#include <optional>

#include "kernels/device.hpp"
#include "kernels/device_waits.hpp"

namespace dp {

class GpuWatch {
 public:
  // Null: there is no GPU, and look() does nothing.
  explicit GpuWatch(Device* computing) : computing_(computing) {}

  // Call it when nothing has moved. is_alone: nothing of this rank is in flight, and the caller has
  // enqueued all its work and is waiting.
  void look(bool is_alone) {
    if (computing_ == nullptr) return;
    const Clock::time_point now = Clock::now();
    if (now - looked_at_ > kLook) {
      computing_->check();
      looked_at_ = now;
    }
    if (!is_alone) {
      wait_.reset();
    } else if (!wait_) {
      wait_.emplace(computing_->waits(), "the gradients of a step");
    }
  }
  // Call it when something has moved, and when the step is over.
  void end_wait() { wait_.reset(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLook{1000};

  Device* computing_;
  Clock::time_point looked_at_;
  std::optional<DeviceWaits::Wait> wait_;
};

}  // namespace dp
