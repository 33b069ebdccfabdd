// Dropout (kernels/dropout.hpp) in training; the identity in evaluation. Backward reads neither
// input nor output: it draws the mask again.
#pragma once

#include "kernels/dropout.hpp"
#include "net/layer.hpp"

namespace dp::net {

class DropoutLayer final : public Layer {
 public:
  struct Options {
    double probability = 0.5;
    std::size_t stream = 0;  // differs between the dropout layers of a model
  };
  explicit DropoutLayer(const Options& options)
      : rule_{.probability = options.probability, .stream = options.stream} {}

  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;

 private:
  DropoutRule rule_;
  const StepPosition* position_ = nullptr;
  bool is_training_ = true;
};

}  // namespace dp::net
