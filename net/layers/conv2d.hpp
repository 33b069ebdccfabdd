// Convolution without bias, as ResNets use it before batch normalisation.
#pragma once

#include <memory>

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
  };
  explicit Conv2dLayer(const Options& options) : options_(options) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  // weight: K x C x R x S
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
  [[nodiscard]] bool backward_reads_input(std::size_t) const override { return true; }
  [[nodiscard]] std::string algorithms() const override { return conv_->algorithms(); }

 private:
  Options options_;
  std::unique_ptr<Conv2d> conv_;
};

}  // namespace dp::net
