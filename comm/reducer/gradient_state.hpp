// A rank's state that a resumed run needs: the residual (the values that encoders have dropped, to
// be sent later) and the velocity (momentum before the exchange, velocity.hpp, or Adam's step,
// adam_velocity.hpp). Each exists once an exchange needs it.
//
// Both are device memory if a device is given, otherwise host memory; Adam's moments are host
// memory in any case, so a device's gradients cannot have them. Nothing here communicates. Use it
// only between steps: during a step the exchanges use its memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/topologies/adam_velocity.hpp"
#include "comm/topologies/velocity.hpp"
#include "kernels/base/state.hpp"
#include "kernels/codecs/segment_memory.hpp"
#include "kernels/device.hpp"

namespace dp {

class GradientState {
 public:
  // The state for a gradient of `elements` floats. `memory` is memory of `device`, or of the host
  // if `device` is null. `memory` and `device` outlive this object.
  GradientState(std::size_t elements, const SegmentMemory& memory, Device* device)
      : elements_(elements), memory_(memory), device_(device) {}

  // Has the gradient's length, or is empty.
  [[nodiscard]] std::span<float> residual() const {
    return {residual_.get(), residual_ == nullptr ? 0 : elements_};
  }
  [[nodiscard]] bool has_residual() const { return residual_ != nullptr; }
  // Null if there is none.
  [[nodiscard]] LocalMomentum* velocity() { return velocity_.get(); }

  // Create the residual or the velocity, filled with zeros, unless it exists.
  void need_residual();
  void need_velocity(const VelocityOptions& options);
  void need_adam(std::span<const TensorSlot> tensors, const AdamVelocityOptions& options);
  // Null unless Adam's steps are exchanged.
  [[nodiscard]] AdamVelocity* adam() { return dynamic_cast<AdamVelocity*>(velocity_.get()); }

  void scale_residual(float factor);
  // Scales the velocity only.
  void scale_velocity(float factor);
  // The sum of squares of [begin, begin + size) of the residual.
  [[nodiscard]] double residual_squares(std::size_t begin, std::size_t size) const;
  // Save a copy of the residual, and restore it.
  void keep_residual();
  void bring_back_residual();
  void list_state(StateVisitor& visitor);

 private:
  [[nodiscard]] StatePlace place() const {
    return device_ == nullptr ? StatePlace::host : StatePlace::device;
  }

  std::size_t elements_;
  const SegmentMemory& memory_;
  Device* device_;
  std::shared_ptr<float> residual_;
  std::unique_ptr<LocalMomentum> velocity_;
  std::vector<float> kept_;
};

}  // namespace dp
