// net/ is the *neural* network, not the cable: layers, models, learning-rate schedules and
// optimisers.
//
// A layer is one node of a network's graph. The author of a layer writes:
//
//   class Example final : public Layer {
//    public:
//     struct Options { ... };                       // what the model chooses
//     explicit Example(const Options&);
//     Shape output_shape(inputs) const;             // the first input's by default; pure;
//                                                   // Error(internal) on a wrong shape
//     std::vector<ParameterSpec> parameters(inputs) const;   // none by default
//     TensorDesc plan(context, inputs);             // makes the kernels' plans for these shapes;
//                                                   // by default y is like the first input
//     void forward(const ForwardArguments&);        // assigns y
//     void backward(const BackwardArguments&);      // assigns dx and the parameters' gradients
//   };
//
// A Layer object belongs to one executor, and therefore to one batch size. Parameters belong to the
// network; bind() hands them to the layer. A layer assigns its outputs and never adds to them. If a
// value has several consumers, the executor adds their gradients. If the layer of the value
// accepts_two_gradients(), the executor leaves the last addition to that layer.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/dropout.hpp"
#include "kernels/rank_gather.hpp"
#include "kernels/tensor.hpp"
#include "net/parameters.hpp"

namespace dp::net {

struct PlanContext {
  Device& device;
  DataType activation_type;
  bool is_training;
  bool needs_input_gradient;  // false if the layer reads the images
  // The step and the images, for layers that draw random numbers. Operations read it when they run.
  const StepPosition* position = nullptr;
  // In training, for layers that use the images of all ranks; null: only this rank's images.
  RankGather* gather = nullptr;

  // The layout and type in which activations of a shape are stored.
  [[nodiscard]] TensorDesc activation(const Shape& shape) const {
    return {shape, activation_type, device.channel_block(shape.c)};
  }
};

// A parameter in use. The gradient is null for statistics, for frozen parameters and in
// evaluation.
struct BoundParameter {
  float* value;
  float* gradient;
};

struct ForwardArguments {
  std::span<const TensorView> x;
  TensorView y;
  std::byte* kept = nullptr;  // kept_bytes() that forward writes for backward
};

struct BackwardArguments {
  std::span<const TensorView> x;    // as in forward; null data if backward does not read it
  TensorView y;                     // the same for the output
  TensorView dy, dy2;               // dy2 only if accepts_two_gradients()
  std::span<const TensorView> dx;   // one per input; null data if no gradient is needed
  const std::byte* kept = nullptr;  // as forward wrote it
};

class Layer {
 public:
  virtual ~Layer() = default;

  [[nodiscard]] virtual Shape output_shape(std::span<const Shape> inputs) const {
    return inputs[0];
  }
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters(std::span<const Shape>) const {
    return {};
  }
  [[nodiscard]] virtual TensorDesc plan(const PlanContext& context,
                                        std::span<const TensorDesc> inputs) {
    device_ = &context.device;
    return inputs[0];
  }
  // Called once, before the first forward, with the parameters in the order of parameters().
  void bind(std::vector<BoundParameter> parameters) { parameters_ = std::move(parameters); }

  virtual void forward(const ForwardArguments& arguments) = 0;
  virtual void backward(const BackwardArguments& arguments) = 0;
  // Called instead of forward() and backward() on a rank without images. Layers that gather values
  // of all ranks override both.
  virtual void forward_without_images() {}
  virtual void backward_without_images() {}

  // Whether backward reads this input, and whether it reads the output. The memory plan keeps a
  // value until backward if backward reads it.
  [[nodiscard]] virtual bool backward_reads_input(std::size_t) const { return false; }
  [[nodiscard]] virtual bool backward_reads_output() const { return false; }
  [[nodiscard]] virtual bool accepts_two_gradients() const { return false; }
  // The bytes that forward writes for backward besides its output. Known after plan().
  [[nodiscard]] virtual std::size_t kept_bytes() const { return 0; }
  // Algorithms chosen by measurement, for dpbench; empty if there is no choice.
  [[nodiscard]] virtual std::string algorithms() const { return {}; }

 protected:
  [[nodiscard]] const BoundParameter& parameter(std::size_t i) const { return parameters_[i]; }

  Device* device_ = nullptr;  // plan() sets it in layers that call operations

 private:
  std::vector<BoundParameter> parameters_;
};

}  // namespace dp::net
