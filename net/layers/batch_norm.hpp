// Batch normalisation, fused with the addition and the ReLU that follow it in a residual block.
#pragma once

#include <memory>

#include "kernels/batch_norm.hpp"
#include "net/layer.hpp"

namespace dp::net {

// Inputs: x and, with has_addend, a tensor of the same shape that is added to the normalised x.
class BatchNormLayer final : public Layer {
 public:
  struct Options {
    bool has_relu = false;
    bool has_addend = false;
    bool has_scale = true;  // false: there is no weight, and the scale is 1
    float epsilon = 1e-5f;
    float momentum = 0.1f;  // the batch's share of the running statistics, as in torch
  };
  explicit BatchNormLayer(const Options& options) : options_(options) {}

  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override;
  // weight (gamma; only with has_scale), bias (beta), running_mean, running_var: C values each
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override;
  [[nodiscard]] TensorDesc plan(const PlanContext& context,
                                std::span<const TensorDesc> inputs) override;
  void forward(const ForwardArguments& arguments) override;
  void backward(const BackwardArguments& arguments) override;
  void forward_without_images() override { norm_->forward_without_images(kernel_parameters()); }
  void backward_without_images() override { norm_->backward_without_images(); }
  [[nodiscard]] bool backward_reads_input(std::size_t i) const override { return i == 0; }
  [[nodiscard]] bool backward_reads_output() const override {
    return options_.has_relu && options_.has_addend;
  }
  [[nodiscard]] bool accepts_two_gradients() const override { return true; }

 private:
  [[nodiscard]] BatchNorm::Parameters kernel_parameters() const;
  [[nodiscard]] std::size_t bias_index() const { return options_.has_scale ? 1 : 0; }

  Options options_;
  bool is_training_ = true;
  std::unique_ptr<BatchNorm> norm_;
};

}  // namespace dp::net
