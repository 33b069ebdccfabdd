// Optimisers: how the summed gradient changes the parameters.
//
// Parameters are divided into *groups*: slices of the flat buffers that share factors for the
// learning rate, the weight decay and the momentum. At first all parameters are one group whose
// factors are 1. net/parameter_groups.hpp makes factors from tensors' names.
//
// An update is recorded once and replayed (Device::record), so only the learning rate and other
// numbers of a step may change between steps. Every rank makes the same update with the same bits,
// which keeps the replicas equal.
//
// A new optimiser is a file in net/optimizers/, a row in optimizer.cpp, and its arithmetic as
// kernels/<name>.hpp with its twins.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/state.hpp"
#include "kernels/device.hpp"
#include "net/parameters.hpp"

namespace dp::net {

struct GroupFactors {
  double learning_rate = 1.0, weight_decay = 1.0, momentum = 1.0;
  bool operator==(const GroupFactors&) const = default;
};

// A slice of the flat buffers, in floats.
struct ParameterGroup {
  std::size_t offset = 0, elements = 0;
  GroupFactors factors = {};
};

// The groups that result from each tensor's factors; neighbours with equal factors form one group.
[[nodiscard]] std::vector<ParameterGroup> make_groups(
    std::span<const Parameter> tensors,
    const std::function<GroupFactors(std::size_t tensor)>& factors_of);

enum class OptimizerKind { sgd, adam, adamw, lars, muon };

// Each optimiser reads the numbers that its formula has (kernels/<name>.hpp).
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  float momentum = 0.9f, weight_decay = 0.0f;
  bool has_nesterov = false;
  double clip_norm = 0.0;  // the greatest norm of the whole gradient; 0: no clipping
  // Adam and AdamW.
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  // LARS: the trust coefficient.
  double trust = 0.001;
  // Muon: its rate as a multiple of the step's, which is that of the other parameters; its momentum
  // (always Nesterov's); and whether linear layers' weights are among its matrices, too.
  double muon_rate_factor = 1.0;
  float muon_momentum = 0.6f;
  bool muon_has_linear = false;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Call it before the first step. Each parameter belongs to exactly one group.
  virtual void set_groups(std::vector<ParameterGroup> groups) = 0;
  // Makes one update with the gradients in the parameters' flat buffer. On a GPU it is enqueued.
  virtual void step(double learning_rate) = 0;
  virtual void list_state(StateVisitor& visitor) = 0;
};

// `parameters` outlives the optimiser.
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(Device& device, Parameters& parameters,
                                                        const OptimizerOptions& options);

// "sgd"
[[nodiscard]] std::string_view optimizer_name(OptimizerKind kind);
// Whether the exchange may keep the momentum (dgc, velocity=): with a momentum factor of 0 the
// optimiser then adds the exchange's sum to the parameters as it is.
[[nodiscard]] bool can_leave_momentum(OptimizerKind kind);
// With each step, the part that a gradient has in the optimiser's steps becomes so many times as
// large; 0: it has one in its own step alone. Of muon, which has two, the smaller.
[[nodiscard]] double momentum_of(const OptimizerOptions& options);

}  // namespace dp::net
