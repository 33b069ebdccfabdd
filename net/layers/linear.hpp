// Fully connected layer with bias; reads and writes N x C fp32.
#pragma once

#include "net/layer.hpp"

namespace dp::net {

class LinearLayer final : public Layer {
 public:
  struct Options {
    std::size_t outputs;  // K
  };
  explicit LinearLayer(const Options& options) : options_(options) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  // weight: K x C; bias: K
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
  [[nodiscard]] bool backward_reads_input(std::size_t) const override { return true; }

 private:
  Options options_;
  Device* device_ = nullptr;
};

}  // namespace dp::net
