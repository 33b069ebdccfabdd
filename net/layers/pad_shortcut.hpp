// ResNet's shortcut without parameters (option A): takes every `stride`-th row and column and
// appends channels of zeros.
#pragma once

#include "net/layer.hpp"

namespace dp::net {

class PadShortcutLayer final : public Layer {
 public:
  struct Options {
    std::size_t channels;
    std::size_t stride = 2;
  };
  explicit PadShortcutLayer(const Options& options) : options_(options) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;

 private:
  Options options_;
};

}  // namespace dp::net
