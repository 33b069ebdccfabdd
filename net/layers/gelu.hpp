// GELU (kernels/gelu.hpp). Backward reads the input.
#pragma once

#include "net/layer.hpp"

namespace dp::net {

class GeluLayer final : public Layer {
 public:
  struct Options {};
  explicit GeluLayer(const Options&) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
  [[nodiscard]] bool backward_reads_input(std::size_t) const override { return true; }

 private:
  Device* device_ = nullptr;
};

}  // namespace dp::net
