#include "net/layers/linear.hpp"

#include "kernels/base/error.hpp"
#include "kernels/linear.hpp"

namespace dp::net {

namespace {

// Images as rows of a matrix.
TensorView rows_of(const TensorView& images) {
  const Shape& s = images.desc.shape;
  return {TensorDesc::nhwc({s.n, 1, 1, s.pixels() * s.c}), images.data};
}

}  // namespace

Shape LinearLayer::output_shape(std::span<const Shape> inputs) const {
  return {inputs[0].n, 1, 1, options_.outputs};
}

std::vector<ParameterSpec> LinearLayer::parameters(std::span<const Shape> inputs) const {
  const Shape& x = inputs[0];
  const std::size_t fan_in = x.pixels() * x.c;
  ParameterSpec weight = {.name = "weight",
                          .shape = {options_.outputs, x.c},
                          .kind = ParameterKind::matrix,
                          .init = options_.init,
                          .fan_in = fan_in,
                          .is_linear = true};
  if (x.pixels() > 1) weight.shape.insert(weight.shape.end(), {x.h, x.w});
  if (!options_.has_bias) return {weight};
  return {weight,
          {.name = "bias",
           .shape = {options_.outputs},
           .kind = ParameterKind::vector,
           .init = options_.bias_init,
           .fan_in = fan_in}};
}

TensorDesc LinearLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  DP_ASSERT(inputs[0].is_nhwc() && inputs[0].type == DataType::f32, "a linear layer reads {}",
            to_string(inputs[0]));
  device_ = &context.device;
  const Shape input = inputs[0].shape;
  return TensorDesc::nhwc(output_shape({&input, 1}));
}

void LinearLayer::forward(const ForwardArguments& a) {
  const float* bias = options_.has_bias ? parameter(1).value : nullptr;
  linear_forward(*device_, rows_of(a.x[0]), parameter(0).value, bias, a.y);
}

void LinearLayer::backward(const BackwardArguments& a) {
  if (a.dx[0]) linear_backward_data(*device_, a.dy, parameter(0).value, rows_of(a.dx[0]));
  linear_backward_weights(*device_, rows_of(a.x[0]), a.dy, parameter(0).gradient,
                          options_.has_bias ? parameter(1).gradient : nullptr);
}

}  // namespace dp::net
