// Average pooling over windows and over the whole image.
#pragma once

#include "net/layer.hpp"

namespace dp::net {

class AveragePoolLayer final : public Layer {
 public:
  struct Options {
    std::size_t window = 2, stride = 2;
  };
  explicit AveragePoolLayer(const Options& options) : options_(options) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;

 private:
  Options options_;
  Device* device_ = nullptr;
};

// N x H x W x C to N x C. The output is fp32 for every type of the activations.
class GlobalAveragePoolLayer final : public Layer {
 public:
  struct Options {};
  explicit GlobalAveragePoolLayer(const Options&) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;

 private:
  Device* device_ = nullptr;
};

}  // namespace dp::net
