// What all optimisers share: groups, the norm for clipping, and the recording of an update.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "net/optimizer.hpp"

namespace dp::net {

// Structs in memory of the host that operations read when they run.
template <class T>
class HostArray {
 public:
  HostArray() = default;
  HostArray(Device& device, std::size_t count)
      : memory_(device.allocate_host(count * sizeof(T))),
        values_(reinterpret_cast<T*>(memory_.get())) {
    for (std::size_t i = 0; i < count; ++i) new (values_ + i) T{};
  }
  [[nodiscard]] T& operator[](std::size_t i) { return values_[i]; }
  [[nodiscard]] T* at(std::size_t i) { return values_ + i; }

 private:
  Device::Memory memory_;
  T* values_ = nullptr;
};

// An array of the device that is as long as the parameters, and starts at zero.
class DeviceArray {
 public:
  DeviceArray(Device& device, std::size_t count)
      : memory_(device.allocate(count * sizeof(float))), count_(count) {}
  [[nodiscard]] std::span<float> values() {
    return {reinterpret_cast<float*>(memory_.get()), count_};
  }

 private:
  Device::Memory memory_;
  std::size_t count_;
};

// A subclass's constructor ends with use_one_group().
class GroupedOptimizer : public Optimizer {
 public:
  GroupedOptimizer(Device& device, Parameters& parameters, const OptimizerOptions& options);
  GroupedOptimizer(const GroupedOptimizer&) = delete;  // the recording refers to this object
  GroupedOptimizer& operator=(const GroupedOptimizer&) = delete;

  void set_groups(std::vector<ParameterGroup> groups) final;
  void step(double learning_rate) final;

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

}  // namespace dp::net
