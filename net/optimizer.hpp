// Optimisers: how the summed gradient changes the parameters.
//
// Parameters are divided into *groups*: slices of the flat buffers that share factors for the
// learning rate, the weight decay and the momentum. At first all parameters are one group whose
// factors are 1.
//
// An update is recorded once and replayed (Device::record), so only the learning rate may change
// between steps. Every rank makes the same update with the same bits, which keeps the replicas
// equal.
//
// A new optimiser is a class here and its arithmetic as kernels/<name>.hpp with its twins.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/state.hpp"
#include "kernels/device.hpp"
#include "kernels/sgd.hpp"
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

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Call it before the first step. Each parameter belongs to exactly one group.
  virtual void set_groups(std::vector<ParameterGroup> groups) = 0;
  // Makes one update with the gradients in the parameters' flat buffer. On a GPU it is enqueued.
  virtual void step(double learning_rate) = 0;
  virtual void list_state(StateVisitor& visitor) = 0;
};

struct SgdOptions {
  float momentum = 0.9f, weight_decay = 0.0f;
  bool has_nesterov = false;
  double clip_norm = 0.0;  // the greatest norm of the whole gradient; 0: no clipping
};

// Stochastic gradient descent with momentum (kernels/sgd.hpp). Its state is the velocity, as long
// as the parameters.
class Sgd final : public Optimizer {
 public:
  // `parameters` outlives the optimiser.
  Sgd(Device& device, Parameters& parameters, const SgdOptions& options);
  Sgd(const Sgd&) = delete;  // the recording refers to this object
  Sgd& operator=(const Sgd&) = delete;

  void set_groups(std::vector<ParameterGroup> groups) override;
  void step(double learning_rate) override;
  void list_state(StateVisitor& visitor) override;

 private:
  void enqueue();

  Device& device_;
  Parameters& parameters_;
  SgdOptions options_;
  std::vector<ParameterGroup> groups_;
  Device::Memory velocity_;
  // The operations read these when they run: one set of factors per group, and the sum of the
  // gradient's squares.
  Device::Memory step_memory_, squares_memory_;
  SgdStep* steps_ = nullptr;
  double* squares_;
  std::unique_ptr<Recording> update_;
};

}  // namespace dp::net
