// Concatenation along channels. The inputs may differ only in their number of channels.
#pragma once

#include "net/layer.hpp"

namespace dp::net {

class ConcatenateLayer final : public Layer {
 public:
  struct Options {};
  explicit ConcatenateLayer(const Options&) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
};

}  // namespace dp::net
