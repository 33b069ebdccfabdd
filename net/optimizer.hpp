// Optimisers: how the summed gradient changes the parameters.
//
// Parameters are divided into *groups*: slices of the flat buffers that share factors for the
// learning rate, the weight decay and the momentum. Initially all parameters form one group whose
// factors are 1. net/parameter_groups.hpp derives factors from tensors' names.
//
// An update is recorded once and replayed (Device::record), so only its numbers, such as the
// learning rate, may change between steps. Every rank makes the same update with the same bits,
// which keeps the replicas equal.
//
// To add an optimiser, write a file in net/optimizers/, a row in optimizer.cpp, and its arithmetic
// as kernels/<name>.hpp with its twins.
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

// Makes groups from each tensor's factors. Neighbours with equal factors form one group.
[[nodiscard]] std::vector<ParameterGroup> make_groups(
    std::span<const Parameter> tensors,
    const std::function<GroupFactors(std::size_t tensor)>& factors_of);

enum class OptimizerKind { sgd, adam, adamw, lars, muon };

// Each optimiser reads only the options that occur in its formula (kernels/<name>.hpp).
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  float momentum = 0.9f, weight_decay = 0.0f;
  bool has_nesterov = false;
  double clip_norm = 0.0;  // the largest norm of the whole gradient; 0: no clipping
  // Adam and AdamW.
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  // LARS: the trust coefficient.
  double trust = 0.001;
  // Muon. The matrices that it updates have muon_rate_factor times the learning rate of step(); all
  // other parameters have the learning rate itself. Muon's momentum is always Nesterov's. With
  // muon_has_linear it also updates the weights of linear layers.
  double muon_rate_factor = 1.0;
  float muon_momentum = 0.6f;
  bool muon_has_linear = false;
};

// Owns the groups, the norm for clipping and the recording of an update. A subclass has the state
// and the operations; its constructor ends with use_one_group().
class Optimizer {
 public:
  // `parameters` must outlive the optimiser.
  Optimizer(Device& device, Parameters& parameters, const OptimizerOptions& options);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;  // the recording refers to this object
  Optimizer& operator=(const Optimizer&) = delete;

  // Call it before the first step. Each parameter belongs to exactly one group.
  void set_groups(std::vector<ParameterGroup> groups);
  // Makes one update with the gradients in the parameters' flat buffer. On a GPU, enqueues it.
  void step(double learning_rate);
  // Whether step() only enqueues an update that an earlier step() has captured. Another thread may
  // then call step() (Recording::is_captured).
  [[nodiscard]] bool is_captured() const { return update_->is_captured(); }
  virtual void list_state(StateVisitor& visitor) = 0;

 protected:
  // The unit of an update: a group, or a part of it.
  struct Slice {
    std::size_t offset = 0, elements = 0;
    GroupFactors factors = {};
    const Parameter* tensor = nullptr;  // null: any number of tensors
  };

  void use_one_group() { set_groups({{.offset = 0, .elements = parameters_.size()}}); }

  // Divides the groups into slices. By default each group is one slice.
  [[nodiscard]] virtual std::vector<Slice> slices_of(const std::vector<ParameterGroup>& groups);
  // Called after the slices have changed. Allocates what set_numbers() writes and enqueue() reads.
  virtual void prepare() = 0;
  // Writes the numbers of the next update, one set for each slice.
  virtual void set_numbers(double learning_rate) = 0;
  // Enqueues the update. `squares`: the whole gradient's sum of squares; null: no clipping.
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
// Makes the optimiser of kind options.kind.
[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(Device& device, Parameters& parameters,
                                                        const OptimizerOptions& options);

// "sgd"
[[nodiscard]] std::string_view optimizer_name(OptimizerKind kind);
// Whether the exchange may take over the momentum (dgc, velocity=). If so, groups with a momentum
// factor of 0 take the exchange's sum, and the optimiser applies no momentum of its own.
[[nodiscard]] bool can_leave_momentum(OptimizerKind kind);
// Whether the exchange may compute this optimiser's whole update before the ranks' values are
// summed (velocity= with Adam). If so, the optimiser applies the sum of these updates to each group
// with a momentum factor of 0.
[[nodiscard]] bool can_leave_step(OptimizerKind kind);
// The momentum: the factor by which the influence of a gradient shrinks from each training step to
// the next. 0: a gradient counts only in its own step. Muon has two such factors, and the smaller
// one is returned.
[[nodiscard]] double momentum_of(const OptimizerOptions& options);

}  // namespace dp::net
