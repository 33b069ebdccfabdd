// The parameters of a network: one flat buffer of values, one of gradients, and where each tensor
// lies in them.
//
// Order in the flat buffers: first all matrices and kernels, in the order in which backward makes
// their gradients final (the last layer first), then all one-dimensional tensors (BatchNorm, bias)
// in the same order. The gradients of neighbouring tensors therefore become final at about the same
// time and are sent as one slice. In memory, kernels are KRSC; files and other programs use torch's
// OIHW (import and export below).
//
// Frozen parameters are set before the first step and are not trained. They have no gradient, are
// not exchanged, and lie in their own buffer.
//
// Statistics (running mean and variance of BatchNorm) are not parameters. They have two buffers:
// the rank's own, for training, and a copy, for evaluation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/state.hpp"
#include "kernels/device.hpp"

namespace dp::net {

enum class ParameterKind { matrix, vector, frozen, statistic };
enum class Init {
  zeros,
  ones,
  kaiming_normal_fan_out,  // N(0, 2 / (K R S)); He et al. 2015
  // U(-1/sqrt(fan_in), 1/sqrt(fan_in)): torch's default for weights and bias of convolutions and
  // linear layers.
  uniform_fan_in,
  // The first C output channels copy their input channels; the other channels are as uniform_fan_in
  // (torch.nn.init.dirac_ on a part of the weights).
  identity_first,
  normal_hundredth,  // N(0, 0.01^2)
  // Computed from the training images (net/whitening.hpp); until then as uniform_fan_in.
  whitening,
};

struct ParameterSpec {
  std::string name;                // "weight", "bias", "running_mean", ...
  std::vector<std::size_t> shape;  // torch's order: OIHW, K x C, C
  ParameterKind kind;
  Init init;
  std::size_t fan_in = 0;          // for uniform_fan_in
  std::size_t trained_epochs = 0;  // trained for this many epochs, then fixed; 0: always
  bool is_linear = false;          // weights of a linear layer
};

// One tensor of the network; offset counts floats from the start of its buffer.
struct Parameter {
  std::string name;  // "layer1.0.conv1.weight"
  std::vector<std::size_t> shape;
  ParameterKind kind;
  Init init;
  std::size_t fan_in = 0, trained_epochs = 0;
  bool is_linear = false;
  std::size_t offset = 0, elements = 0;

  // To torch, a linear layer's weights are a matrix, even for images of several pixels.
  [[nodiscard]] std::vector<std::size_t> torch_shape() const {
    if (!is_linear) return shape;
    return {shape[0], elements / shape[0]};
  }
  [[nodiscard]] bool is_trained_in(std::size_t epoch) const {
    return trained_epochs == 0 || epoch < trained_epochs;
  }
};

class Parameters {
 public:
  // `specs` are in the order in which backward makes gradients final, with full names.
  Parameters(Device& device, std::vector<Parameter> specs);

  // Matrices and vectors, in the order of the flat buffers.
  [[nodiscard]] std::span<const Parameter> tensors() const { return tensors_; }
  [[nodiscard]] std::span<const Parameter> frozen() const { return frozen_; }
  [[nodiscard]] std::span<const Parameter> statistics() const { return statistics_; }
  // The number of floats that are trained.
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t frozen_size() const { return frozen_size_; }

  // Flat buffers in the device's memory (Device::upload and download copy values to it and back).

  [[nodiscard]] std::span<float> values() { return {floats(values_), size_}; }
  [[nodiscard]] std::span<float> gradients() { return {floats(gradients_), size_}; }
  // The values of all tensors in frozen().
  [[nodiscard]] std::span<float> frozen_values() { return {floats(frozen_values_), frozen_size_}; }
  // The rank's own running statistics, and the copy that evaluation uses.
  [[nodiscard]] std::span<float> training_statistics() {
    return {floats(training_statistics_), statistics_size_};
  }
  [[nodiscard]] std::span<float> evaluation_statistics() {
    return {floats(evaluation_statistics_), statistics_size_};
  }

  // Operations: copy the rank's running statistics to a spare buffer, and back.
  void keep_statistics();
  void bring_back_statistics();

  // Lists all values: the tensors in the order of the flat buffer, the frozen tensors, and the
  // running statistics. The copy for evaluation is not listed, because it is made from the running
  // statistics.
  void list_state(StateVisitor& visitor);

  // Sets values and statistics to their initial state, which depends only on the seed, the tensor's
  // name and the position in torch's order.
  void initialise(std::uint64_t seed);

  // Copies a tensor of `buffer` (values, gradients, frozen values or statistics, in host memory) to
  // or from torch's order.
  static void export_torch(const Parameter& tensor, std::span<const float> buffer,
                           std::span<float> torch_order);
  static void import_torch(const Parameter& tensor, std::span<const float> torch_order,
                           std::span<float> buffer);

 private:
  static float* floats(const Device::Memory& memory) {
    return reinterpret_cast<float*>(memory.get());
  }

  Device& device_;
  std::vector<Parameter> tensors_, frozen_, statistics_;
  std::size_t size_ = 0, frozen_size_ = 0, statistics_size_ = 0;
  Device::Memory values_, gradients_, frozen_values_;
  Device::Memory training_statistics_, kept_statistics_, evaluation_statistics_;
};

}  // namespace dp::net
