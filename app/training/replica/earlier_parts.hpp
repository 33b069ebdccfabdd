// The sums over the earlier parts of a step (--accumulate).
#pragma once

#include <cstddef>
#include <span>

#include "kernels/arrays.hpp"
#include "kernels/device.hpp"
#include "kernels/mix.hpp"
#include "kernels/softmax_cross_entropy.hpp"

namespace dp {

class EarlierParts {
 public:
  // gradients: all gradients of the model. has_memory: false if every step has one part.
  EarlierParts(Device& device, std::span<const float> gradients, bool has_memory)
      : device_(device), gradients_(gradients) {
    if (has_memory) sums_ = DeviceArray(device, gradients.size());
  }

  void begin_step() {
    has_gradients_ = false;
    loss_ = {};
  }
  // Whether an earlier part of the step had images, so that add_to() has gradients to add.
  [[nodiscard]] bool has_gradients() const { return has_gradients_; }
  void note_gradients() { has_gradients_ = true; }

  // Device operations, which may be recorded. After a part that is not the last one, keep() adds
  // the model's gradients to the sums.
  void keep() {
    if (has_gradients_) {
      add_values(device_, gradients_, sums_.values());
    } else {
      blend_values(device_, gradients_, sums_.values(), 1.0f);
    }
  }
  // Adds the sums to a slice of the model's gradients, or to all.
  void add_to(std::span<float> slice) {
    if (!has_gradients_) return;
    const auto offset = static_cast<std::size_t>(slice.data() - gradients_.data());
    add_values(device_, sums_.values().subspan(offset, slice.size()), slice);
  }

  LossSums& loss() { return loss_; }

 private:
  Device& device_;
  std::span<const float> gradients_;
  DeviceArray sums_;
  bool has_gradients_ = false;
  LossSums loss_;
};

}  // namespace dp
