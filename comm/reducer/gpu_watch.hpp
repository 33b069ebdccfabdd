// Looks after the GPU whose gradients a reducer exchanges. Nothing becomes final on a GPU that has
// failed or stands still. So the reducer's thread asks it now and then for its failure, and lets it
// know when nothing but the GPU can bring the step on (Device::waits).
#pragma once

#include <chrono>
#include <optional>

#include "kernels/device.hpp"
#include "kernels/device_waits.hpp"

namespace dp {

class GpuWatch {
 public:
  // Null: there is no GPU, and nothing is done.
  explicit GpuWatch(Device* computing) : computing_(computing) {}

  // Nothing has moved. is_alone: nothing of this rank is under way, and the caller has enqueued all
  // that it has and waits.
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
  // Something has moved, or the step is over.
  void end_wait() { wait_.reset(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLook{1000};

  Device* computing_;
  Clock::time_point looked_at_;
  std::optional<DeviceWaits::Wait> wait_;
};

}  // namespace dp
