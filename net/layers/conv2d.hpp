// Convolution, with or without a bias.
#pragma once

#include <memory>

#include "kernels/channel_bias.hpp"
#include "kernels/conv2d.hpp"
#include "net/layer.hpp"

namespace dp::net {

class Conv2dLayer final : public Layer {
 public:
  struct Options {
    std::size_t channels;  // K
    Extent kernel = 3;     // R x S: `.kernel = 3` or `.kernel = {1, 7}`
    std::size_t stride = 1;
    Extent padding = 1;
    bool has_bias = false;
    bool is_frozen = false;  // the weights are not trained (the bias is)
    Init init = Init::kaiming_normal_fan_out;
    Init bias_init = Init::zeros;
    std::size_t bias_epochs = 0;  // the bias is trained for this many epochs; 0: always
  };
  explicit Conv2dLayer(const Options& options) : options_(options) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  // weight: K x C x R x S; bias: K
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
  [[nodiscard]] bool backward_reads_input(std::size_t) const override {
    return !options_.is_frozen;
  }
  [[nodiscard]] std::string algorithms() const override { return conv_->algorithms(); }

 private:
  Options options_;
  std::unique_ptr<Conv2d> conv_;
  std::unique_ptr<ChannelBias> bias_;
};

}  // namespace dp::net
