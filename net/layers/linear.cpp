#include "net/layers/linear.hpp"

#include "kernels/base/error.hpp"
#include "kernels/linear.hpp"

namespace dp::net {

Shape LinearLayer::output_shape(std::span<const Shape> inputs) const {
  DP_ASSERT(inputs[0].pixels() == 1, "a linear layer reads {}x{} pixels", inputs[0].h, inputs[0].w);
  return {inputs[0].n, 1, 1, options_.outputs};
}

std::vector<ParameterSpec> LinearLayer::parameters(std::span<const Shape> inputs) const {
  const std::size_t fan_in = inputs[0].c;
  return {
      {"weight", {options_.outputs, fan_in}, ParameterKind::matrix, Init::uniform_fan_in, fan_in},
      {"bias", {options_.outputs}, ParameterKind::vector, Init::uniform_fan_in, fan_in}};
}

TensorDesc LinearLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  device_ = &context.device;
  const Shape input = inputs[0].shape;
  return TensorDesc::nhwc(output_shape({&input, 1}));
}

void LinearLayer::forward(const ForwardArguments& a) {
  linear_forward(*device_, a.x[0], parameter(0).value, parameter(1).value, a.y);
}

void LinearLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) linear_backward_data(*device_, a.dy, parameter(0).value, a.dx[0]);
  linear_backward_weights(*device_, a.x[0], a.dy, parameter(0).gradient, parameter(1).gradient);
}

}  // namespace dp::net
