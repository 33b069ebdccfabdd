#include "comm/reducer/gradient_state.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"

namespace dp {

void GradientState::need_residual() {
  if (residual_ == nullptr) residual_ = memory_.allocate(elements_);
}

void GradientState::need_velocity(const VelocityOptions& options) {
  if (!velocity_) velocity_ = std::make_unique<LocalVelocity>(elements_, options, memory_, place());
}

void GradientState::need_adam(std::span<const TensorSlot> tensors,
                              const AdamVelocityOptions& options) {
  DP_ASSERT(device_ == nullptr, "Adam's moments are host memory");
  if (!velocity_) velocity_ = std::make_unique<AdamVelocity>(elements_, tensors, options);
}

void GradientState::scale_residual(float factor) {
  memory_.scale(factor, residual().data(), residual().size());
}

void GradientState::scale_velocity(float factor) {
  if (velocity_) velocity_->scale(factor);
}

double GradientState::residual_squares(std::size_t begin, std::size_t size) const {
  return memory_.squares_of_sum(residual().data() + begin, nullptr, size);
}

void GradientState::keep_residual() {
  kept_.resize(residual().size());
  if (device_ != nullptr) {
    device_->download(kept_.data(), residual().data(), residual().size_bytes());
  } else {
    std::ranges::copy(residual(), kept_.begin());
  }
}

void GradientState::bring_back_residual() {
  if (device_ != nullptr) {
    device_->upload(residual().data(), kept_.data(), residual().size_bytes());
  } else {
    std::ranges::copy(kept_, residual().begin());
  }
}

void GradientState::list_state(StateVisitor& visitor) {
  if (has_residual()) {
    visitor.values("exchange/residual", residual(), StateShare::own, place(), StateMerge::sum,
                   StateGrain::value);
  }
  if (velocity_) velocity_->list_state(visitor);
}

}  // namespace dp
