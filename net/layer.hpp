// net/ is the *neural* network: layers, models, learning-rate schedules (not the cable).
//
// A layer is one node of a network's graph. What a layer author writes:
//
//   class Example final : public Layer {
//    public:
//     struct Options { ... };                       // what the model chooses
//     explicit Example(const Options&);
//     Shape output_shape(inputs) const;             // pure; throws Error(internal) on a misfit
//     std::vector<ParameterSpec> parameters(inputs) const;   // none by default
//     TensorDesc plan(context, inputs);             // makes the kernels' plans for these shapes
//     void forward(const ForwardArguments&);        // assigns y
//     void backward(const BackwardArguments&);      // assigns dx and the parameters' gradients
//   };
//
// A Layer object belongs to one executor, that is to one batch size; parameters belong to the
// network and are handed in by bind(). Layers never add to their outputs: where a value has several
// consumers the executor adds their gradients, or hands two of them to a layer that says it
// accepts_two_gradients().
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/tensor.hpp"
#include "net/parameters.hpp"

namespace dp::net {

struct PlanContext {
  Device& device;
  DataType activation_type;
  bool is_training;
  bool needs_input_gradient;  // false where the layer reads the images

  // The form in which activations of a shape are kept.
  [[nodiscard]] TensorDesc activation(const Shape& shape) const {
    return {shape, activation_type, device.channel_block(shape.c)};
  }
};

// A parameter in use: its values and gradient (null for statistics and in evaluation).
struct BoundParameter {
  float* value;
  float* gradient;
};

struct ForwardArguments {
  std::span<const TensorView> x;
  TensorView y;
};

struct BackwardArguments {
  std::span<const TensorView> x;   // as in forward; null data where the layer does not read it
  TensorView y;                    // likewise
  TensorView dy, dy2;              // dy2 only where accepts_two_gradients()
  std::span<const TensorView> dx;  // one per input; null data where no gradient is wanted
};

class Layer {
 public:
  virtual ~Layer() = default;

  [[nodiscard]] virtual Shape output_shape(std::span<const Shape> inputs) const = 0;
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters(std::span<const Shape>) const {
    return {};
  }
  [[nodiscard]] virtual TensorDesc plan(const PlanContext& context,
                                        std::span<const TensorDesc> inputs) = 0;
  // In the order of parameters(). Called once, before the first forward.
  void bind(std::vector<BoundParameter> parameters) { parameters_ = std::move(parameters); }

  virtual void forward(const ForwardArguments& arguments) = 0;
  virtual void backward(const BackwardArguments& arguments) = 0;

  // What backward reads, so that the memory plan keeps it.
  [[nodiscard]] virtual bool backward_reads_input(std::size_t) const { return false; }
  [[nodiscard]] virtual bool backward_reads_output() const { return false; }
  [[nodiscard]] virtual bool accepts_two_gradients() const { return false; }
  // Algorithms chosen by measurement, for dpbench; empty where there is no choice.
  [[nodiscard]] virtual std::string algorithms() const { return {}; }

 protected:
  [[nodiscard]] const BoundParameter& parameter(std::size_t i) const { return parameters_[i]; }

 private:
  std::vector<BoundParameter> parameters_;
};

}  // namespace dp::net
