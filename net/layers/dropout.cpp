#include "net/layers/dropout.hpp"

#include "kernels/base/error.hpp"
#include "kernels/elementwise.hpp"

namespace dp::net {

TensorDesc DropoutLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  position_ = context.position;
  is_training_ = context.is_training;
  return Layer::plan(context, inputs);
}

void DropoutLayer::forward(const ForwardArguments& a) {
  if (!is_training_) return copy(*device_, a.x[0], a.y);
  DP_ASSERT(position_ != nullptr, "dropout does not know the step");
  dropout(*device_, a.x[0], rule_, position_, a.y);
}

void DropoutLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) dropout(*device_, a.dy, rule_, position_, a.dx[0]);
}

}  // namespace dp::net
