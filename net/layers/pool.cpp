#include "net/layers/pool.hpp"

#include "kernels/max_pool.hpp"
#include "kernels/pool.hpp"

namespace dp::net {

Shape MaxPoolLayer::output_shape(std::span<const Shape> inputs) const {
  return pooled_shape(inputs[0], options_);
}

TensorDesc MaxPoolLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  device_ = &context.device;
  const TensorDesc y{pooled_shape(inputs[0].shape, options_), inputs[0].type,
                     inputs[0].channel_block};
  kept_bytes_ = context.is_training ? y.shape.elements() : 0;
  return y;
}

void MaxPoolLayer::forward(const ForwardArguments& a) {
  max_pool_forward(*device_, a.x[0], options_, a.y, reinterpret_cast<std::uint8_t*>(a.kept));
}

void MaxPoolLayer::backward(const BackwardArguments& a) {
  if (!a.dx[0]) return;
  max_pool_backward(*device_, a.dy, reinterpret_cast<const std::uint8_t*>(a.kept), options_,
                    a.dx[0]);
}

Shape AveragePoolLayer::output_shape(std::span<const Shape> inputs) const {
  return pooled_shape(inputs[0], options_);
}

TensorDesc AveragePoolLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  device_ = &context.device;
  return {pooled_shape(inputs[0].shape, options_), inputs[0].type, inputs[0].channel_block};
}

void AveragePoolLayer::forward(const ForwardArguments& a) {
  average_pool_forward(*device_, a.x[0], options_, a.y);
}

void AveragePoolLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) average_pool_backward(*device_, a.dy, options_, a.dx[0]);
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
