#include "net/layers/conv2d.hpp"

namespace dp::net {

Shape Conv2dLayer::output_shape(std::span<const Shape> inputs) const {
  return conv2d_output(inputs[0], options_.channels, options_.kernel, options_.stride,
                       options_.padding);
}

std::vector<ParameterSpec> Conv2dLayer::parameters(std::span<const Shape> inputs) const {
  return {{.name = "weight",
           .shape = {options_.channels, inputs[0].c, options_.kernel.h, options_.kernel.w},
           .kind = ParameterKind::matrix,
           .init = Init::kaiming_normal_fan_out}};
}

TensorDesc Conv2dLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  const Shape input = inputs[0].shape;
  const TensorDesc y = context.activation(output_shape({&input, 1}));
  conv_ = make_conv2d(context.device, {.x = inputs[0],
                                       .y = y,
                                       .kernel = options_.kernel,
                                       .stride = options_.stride,
                                       .padding = options_.padding,
                                       .is_training = context.is_training,
                                       .needs_input_gradient = context.needs_input_gradient});
  return y;
}

void Conv2dLayer::forward(const ForwardArguments& a) {
  conv_->forward(a.x[0], parameter(0).value, a.y);
}

void Conv2dLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) conv_->backward_data(a.dy, parameter(0).value, a.dx[0]);
  conv_->backward_weights(a.x[0], a.dy, parameter(0).gradient);
}

}  // namespace dp::net
