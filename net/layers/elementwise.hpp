// ReLU and addition as layers of their own. Networks without batch normalisation need them; the
// layer for batch normalisation includes both. Further layers: GELU, a constant factor, and the
// conversion of images for linear layers.
#pragma once

#include "net/layer.hpp"

namespace dp::net {

class ReluLayer final : public Layer {
 public:
  struct Options {};
  explicit ReluLayer(const Options&) {}

  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
  [[nodiscard]] bool backward_reads_output() const override { return true; }
};

// GELU as in kernels/gelu.hpp.
class GeluLayer final : public Layer {
 public:
  struct Options {};
  explicit GeluLayer(const Options&) {}

  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
  [[nodiscard]] bool backward_reads_input(std::size_t) const override { return true; }
};

// y = factor * x
class ScaleLayer final : public Layer {
 public:
  struct Options {
    float factor;
  };
  explicit ScaleLayer(const Options& options) : factor_(options.factor) {}

  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;

 private:
  float factor_;
};

// Converts activations of any type and channel block to NHWC fp32, which a linear layer reads.
class FlattenLayer final : public Layer {
 public:
  struct Options {};
  explicit FlattenLayer(const Options&) {}

  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
};

// Adds two inputs of the same shape.
class AddLayer final : public Layer {
 public:
  struct Options {};
  explicit AddLayer(const Options&) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
};

}  // namespace dp::net
