#include "net/layers/pool.hpp"

#include "kernels/conv2d.hpp"
#include "kernels/pool.hpp"

namespace dp::net {

Shape AveragePoolLayer::output_shape(std::span<const Shape> inputs) const {
  return conv2d_output(inputs[0], inputs[0].c, options_.window, options_.stride, 0);
}

TensorDesc AveragePoolLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  device_ = &context.device;
  const Shape input = inputs[0].shape;
  return {output_shape({&input, 1}), inputs[0].type, inputs[0].channel_block};
}

void AveragePoolLayer::forward(const ForwardArguments& a) {
  average_pool_forward(*device_, a.x[0], options_.window, options_.stride, a.y);
}

void AveragePoolLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) average_pool_backward(*device_, a.dy, options_.window, options_.stride, a.dx[0]);
}

Shape GlobalAveragePoolLayer::output_shape(std::span<const Shape> inputs) const {
  return {inputs[0].n, 1, 1, inputs[0].c};
}

TensorDesc GlobalAveragePoolLayer::plan(const PlanContext& context,
                                        std::span<const TensorDesc> inputs) {
  device_ = &context.device;
  const Shape input = inputs[0].shape;
  return TensorDesc::nhwc(output_shape({&input, 1}));
}

void GlobalAveragePoolLayer::forward(const ForwardArguments& a) {
  global_average_pool_forward(*device_, a.x[0], a.y);
}

void GlobalAveragePoolLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) global_average_pool_backward(*device_, a.dy, a.dx[0]);
}

}  // namespace dp::net
