#include "net/layers/pad_shortcut.hpp"

#include "kernels/conv2d.hpp"
#include "kernels/pad_shortcut.hpp"

namespace dp::net {

Shape PadShortcutLayer::output_shape(std::span<const Shape> inputs) const {
  return conv2d_output(inputs[0], options_.channels, 1, options_.stride, 0);
}

TensorDesc PadShortcutLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  device_ = &context.device;
  const Shape input = inputs[0].shape;
  return context.activation(output_shape({&input, 1}));
}

void PadShortcutLayer::forward(const ForwardArguments& a) {
  pad_shortcut_forward(*device_, a.x[0], options_.stride, a.y);
}

void PadShortcutLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) pad_shortcut_backward(*device_, a.dy, options_.stride, a.dx[0]);
}

}  // namespace dp::net
