#include "net/layers/conv2d.hpp"

namespace dp::net {

Shape Conv2dLayer::output_shape(std::span<const Shape> inputs) const {
  return conv2d_output(inputs[0], options_.channels, options_.kernel, options_.stride,
                       options_.padding);
}

std::vector<ParameterSpec> Conv2dLayer::parameters(std::span<const Shape> inputs) const {
  const std::size_t fan_in = inputs[0].c * options_.kernel.area();
  const ParameterSpec weight = {
      .name = "weight",
      .shape = {options_.channels, inputs[0].c, options_.kernel.h, options_.kernel.w},
      .kind = options_.is_frozen ? ParameterKind::frozen : ParameterKind::matrix,
      .init = options_.init,
      .fan_in = fan_in};
  if (!options_.has_bias) return {weight};
  return {weight,
          {.name = "bias",
           .shape = {options_.channels},
           .kind = ParameterKind::vector,
           .init = options_.bias_init,
           .fan_in = fan_in,
           .trained_epochs = options_.bias_epochs}};
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
                                       .needs_input_gradient = context.needs_input_gradient,
                                       .needs_weight_gradient = !options_.is_frozen});
  if (options_.has_bias) bias_ = make_channel_bias(context.device, y);
  return y;
}

void Conv2dLayer::forward(const ForwardArguments& a) {
  conv_->forward(a.x[0], parameter(0).value, a.y);
  if (bias_) bias_->add(a.y, parameter(1).value);
}

void Conv2dLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) conv_->backward_data(a.dy, parameter(0).value, a.dx[0]);
  if (!options_.is_frozen) conv_->backward_weights(a.x[0], a.dy, parameter(0).gradient);
  if (bias_) bias_->backward(a.dy, parameter(1).gradient);
}

}  // namespace dp::net
