#include "net/layers/elementwise.hpp"

#include "kernels/base/error.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gelu.hpp"

namespace dp::net {

void ReluLayer::forward(const ForwardArguments& a) { relu_forward(*device_, a.x[0], a.y); }

void ReluLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) relu_backward(*device_, a.y, a.dy, a.dx[0]);
}

void GeluLayer::forward(const ForwardArguments& a) { gelu_forward(*device_, a.x[0], a.y); }

void GeluLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) gelu_backward(*device_, a.x[0], a.dy, a.dx[0]);
}

void ScaleLayer::forward(const ForwardArguments& a) { scale(*device_, a.x[0], factor_, a.y); }

void ScaleLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) scale(*device_, a.dy, factor_, a.dx[0]);
}

TensorDesc FlattenLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  device_ = &context.device;
  return TensorDesc::nhwc(inputs[0].shape);
}

void FlattenLayer::forward(const ForwardArguments& a) { copy(*device_, a.x[0], a.y); }

void FlattenLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) copy(*device_, a.dy, a.dx[0]);
}

Shape AddLayer::output_shape(std::span<const Shape> inputs) const {
  DP_ASSERT(inputs.size() == 2 && inputs[0] == inputs[1],
            "an addition needs two inputs of equal shape, and has {} inputs", inputs.size());
  return inputs[0];
}

TensorDesc AddLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  DP_ASSERT(inputs[0] == inputs[1], "{} and {} cannot be added, because they differ",
            to_string(inputs[0]), to_string(inputs[1]));
  return Layer::plan(context, inputs);
}

void AddLayer::forward(const ForwardArguments& a) { add(*device_, a.x[0], a.x[1], a.y); }

void AddLayer::backward(const BackwardArguments& a) {
  for (const TensorView& dx : a.dx) {
    if (dx) copy(*device_, a.dy, dx);
  }
}

}  // namespace dp::net
