#include "net/layers/gelu.hpp"

#include "kernels/gelu.hpp"

namespace dp::net {

Shape GeluLayer::output_shape(std::span<const Shape> inputs) const { return inputs[0]; }

TensorDesc GeluLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  device_ = &context.device;
  return inputs[0];
}

void GeluLayer::forward(const ForwardArguments& a) { gelu_forward(*device_, a.x[0], a.y); }

void GeluLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) gelu_backward(*device_, a.x[0], a.dy, a.dx[0]);
}

}  // namespace dp::net
