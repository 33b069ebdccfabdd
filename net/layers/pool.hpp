// Max pooling and average pooling over windows, and average pooling over the whole image.
#pragma once

#include "kernels/pooling.hpp"
#include "net/layer.hpp"

namespace dp::net {

// If several values are equal, kernels/max_pool.hpp says which one gets the gradient. Keeps one
// byte for each value of its output; backward reads neither input nor output.
class MaxPoolLayer final : public Layer {
 public:
  using Options = Pooling;
  explicit MaxPoolLayer(const Options& options) : options_(options) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
  [[nodiscard]] std::size_t kept_bytes() const override { return kept_bytes_; }

 private:
  Options options_;
  std::size_t kept_bytes_ = 0;
};

class AveragePoolLayer final : public Layer {
 public:
  using Options = Pooling;
  explicit AveragePoolLayer(const Options& options) : options_(options) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;

 private:
  Options options_;
};

// Averages N x H x W x C to N x C. The output is always fp32, whatever type the activations have.
class GlobalAveragePoolLayer final : public Layer {
 public:
  struct Options {};
  explicit GlobalAveragePoolLayer(const Options&) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
};

}  // namespace dp::net
