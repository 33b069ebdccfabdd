// Fully connected layer; reads NHWC fp32 and writes N x K fp32.
#pragma once

#include "net/layer.hpp"

namespace dp::net {

class LinearLayer final : public Layer {
 public:
  struct Options {
    std::size_t outputs;  // K
    bool has_bias = true;
    Init init = Init::uniform_fan_in;       // of the weights
    Init bias_init = Init::uniform_fan_in;  // of the bias
  };
  explicit LinearLayer(const Options& options) : options_(options) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  // weight: K x C, or K x C x H x W for images of several pixels; bias: K. In memory, the weights
  // for the channels of one pixel are neighbours, as in NHWC images. Exported to torch, a row of
  // the weights has the order of a flattened NCHW image.
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
  [[nodiscard]] bool backward_reads_input(std::size_t) const override { return true; }

 private:
  Options options_;
};

}  // namespace dp::net
