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

#include "kernels/arrays.hpp"
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

// Has the groups, the norm for clipping and the recording of an update. A subclass has the state
// and the operations; its constructor ends with use_one_group().
class Optimizer {
 public:
  // `parameters` outlives the optimiser.
  Optimizer(Device& device, Parameters& parameters, const OptimizerOptions& options);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;  // the recording refers to this object
  Optimizer& operator=(const Optimizer&) = delete;

  // Call it before the first step. Each parameter belongs to exactly one group.
  void set_groups(std::vector<ParameterGroup> groups);
  // Makes one update with the gradients in the parameters' flat buffer. On a GPU it is enqueued.
  void step(double learning_rate);
  virtual void list_state(StateVisitor& visitor) = 0;

 protected:
  // What an update works on: a group, or a part of it.
  struct Slice {
    std::size_t offset = 0, elements = 0;
    GroupFactors factors = {};
    const Parameter* tensor = nullptr;  // null: any number of tensors
  };

  void use_one_group() { set_groups({{.offset = 0, .elements = parameters_.size()}}); }

  // The slices of which the groups consist. By default the groups themselves.
  [[nodiscard]] virtual std::vector<Slice> slices_of(const std::vector<ParameterGroup>& groups);
  // After the slices have changed: makes what set_numbers() writes and enqueue() refers to.
  virtual void prepare() = 0;
  // Writes the numbers of the next update, one set a slice.
  virtual void set_numbers(double learning_rate) = 0;
  // Enqueues the update. squares: of the whole gradient; null: no clipping.
  virtual void enqueue(const double* squares) = 0;

  // One slice for each tensor of the groups.
  [[nodiscard]] std::vector<Slice> tensors_of(const std::vector<ParameterGroup>& groups);
  [[nodiscard]] std::span<float> values(const Slice& slice) {
    return parameters_.values().subspan(slice.offset, slice.elements);
  }
  [[nodiscard]] std::span<const float> gradients(const Slice& slice) {
    return parameters_.gradients().subspan(slice.offset, slice.elements);
  }
  [[nodiscard]] static std::span<float> part(DeviceArray& array, const Slice& slice) {
    return array.values().subspan(slice.offset, slice.elements);
  }
  [[nodiscard]] static float scaled(double value, double factor) {
    return static_cast<float>(value * factor);
  }

  Device& device_;
  Parameters& parameters_;
  const OptimizerOptions options_;
  std::vector<Slice> slices_;

 private:
  HostArray<double> squares_;
  std::unique_ptr<Recording> update_;
};

[[nodiscard]] std::unique_ptr<Optimizer> make_sgd(Device& device, Parameters& parameters,
                                                  const OptimizerOptions& options);
// Adam or AdamW, as options.kind says.
[[nodiscard]] std::unique_ptr<Optimizer> make_adam(Device& device, Parameters& parameters,
                                                   const OptimizerOptions& options);
[[nodiscard]] std::unique_ptr<Optimizer> make_lars(Device& device, Parameters& parameters,
                                                   const OptimizerOptions& options);
[[nodiscard]] std::unique_ptr<Optimizer> make_muon(Device& device, Parameters& parameters,
                                                   const OptimizerOptions& options);
// Of the kind that the options name.
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(Device& device, Parameters& parameters,
                                                        const OptimizerOptions& options);

// "sgd"
[[nodiscard]] std::string_view optimizer_name(OptimizerKind kind);
// Whether the exchange may keep the momentum (dgc, velocity=): with a momentum factor of 0 the
// optimiser then adds the exchange's sum to the parameters as it is.
[[nodiscard]] bool can_leave_momentum(OptimizerKind kind);
// Whether the exchange may make this optimiser's whole step before it sums (velocity= with Adam).
// With a momentum factor of 0 the optimiser then adds the sum as it is.
[[nodiscard]] bool can_leave_step(OptimizerKind kind);
// With each step, the part that a gradient has in the optimiser's steps becomes so many times as
// large; 0: it has one in its own step alone. Of muon, which has two, the smaller.
[[nodiscard]] double momentum_of(const OptimizerOptions& options);

}  // namespace dp::net
