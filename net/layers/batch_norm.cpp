#include "net/layers/batch_norm.hpp"

#include "kernels/base/error.hpp"

namespace dp::net {

Shape BatchNormLayer::output_shape(std::span<const Shape> inputs) const {
  DP_ASSERT(inputs.size() == (options_.has_addend ? 2u : 1u), "{} inputs", inputs.size());
  DP_ASSERT(!options_.has_addend || inputs[0] == inputs[1],
            "the addend's shape, {}x{}x{}, differs from the input's shape, {}x{}x{}", inputs[1].h,
            inputs[1].w, inputs[1].c, inputs[0].h, inputs[0].w, inputs[0].c);
  return inputs[0];
}

std::vector<ParameterSpec> BatchNormLayer::parameters(std::span<const Shape> inputs) const {
  const std::vector<std::size_t> shape = {inputs[0].c};
  std::vector<ParameterSpec> specs = {
      {"bias", shape, ParameterKind::vector, Init::zeros},
      {"running_mean", shape, ParameterKind::statistic, Init::zeros},
      {"running_var", shape, ParameterKind::statistic, Init::ones}};
  if (options_.has_scale) {
    specs.insert(specs.begin(), {"weight", shape, ParameterKind::vector, Init::ones});
  }
  return specs;
}

TensorDesc BatchNormLayer::plan(const PlanContext& context, std::span<const TensorDesc> inputs) {
  is_training_ = context.is_training;
  if (is_training_ && !context.needs_input_gradient) {
    throw_error(ErrorKind::internal,
                "batch normalisation always computes the gradient of its input in training, so it "
                "cannot be the first layer, which reads the images");
  }
  norm_ = make_batch_norm(context.device, {.x = inputs[0],
                                           .has_relu = options_.has_relu,
                                           .has_addend = options_.has_addend,
                                           .epsilon = options_.epsilon,
                                           .momentum = options_.momentum,
                                           .gather = is_training_ ? context.gather : nullptr});
  return inputs[0];
}

BatchNorm::Parameters BatchNormLayer::kernel_parameters() const {
  const std::size_t first = bias_index();
  return {.gamma = options_.has_scale ? parameter(0).value : nullptr,
          .beta = parameter(first).value,
          .running_mean = parameter(first + 1).value,
          .running_var = parameter(first + 2).value};
}

void BatchNormLayer::forward(const ForwardArguments& a) {
  const TensorView addend = options_.has_addend ? a.x[1] : TensorView{};
  if (is_training_) {
    norm_->forward_training(a.x[0], addend, kernel_parameters(), a.y);
  } else {
    norm_->forward_inference(a.x[0], addend, kernel_parameters(), a.y);
  }
}

void BatchNormLayer::backward(const BackwardArguments& a) {
  norm_->backward(a.x[0], a.y, kernel_parameters(),
                  {.dy = a.dy,
                   .dy2 = a.dy2,
                   .dx = a.dx[0],
                   .d_addend = options_.has_addend ? a.dx[1] : TensorView{},
                   .d_gamma = options_.has_scale ? parameter(0).gradient : nullptr,
                   .d_beta = parameter(bias_index()).gradient});
}

}  // namespace dp::net
