// LARS (kernels/lars.hpp): the learning rate of every matrix and kernel follows from its norms;
// one-dimensional tensors are updated as by SGD. Its state is the velocity, as long as the
// parameters.
#include "kernels/lars.hpp"

#include "net/optimizer.hpp"

namespace dp::net {

namespace {

class Lars final : public Optimizer {
 public:
  Lars(Device& device, Parameters& parameters, const OptimizerOptions& options)
      : Optimizer(device, parameters, options), velocity_(device, parameters.size()) {
    use_one_group();
  }

  void list_state(StateVisitor& visitor) override {
    visitor.values("optimizer/velocity", velocity_.values(), StateShare::replicated,
                   StatePlace::device);
  }

 private:
  [[nodiscard]] static bool is_adapted(const Slice& slice) {
    return slice.tensor->kind == ParameterKind::matrix;
  }

  std::vector<Slice> slices_of(const std::vector<ParameterGroup>& groups) override {
    return tensors_of(groups);
  }

  void prepare() override {
    steps_ = HostArray<LarsStep>(device_, slices_.size());
    norms_ = HostArray<LarsNorms>(device_, slices_.size());
  }

  void set_numbers(double learning_rate) override {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const GroupFactors& factors = slices_[i].factors;
      steps_[i] = {.learning_rate = scaled(learning_rate, factors.learning_rate),
                   .momentum = scaled(options_.momentum, factors.momentum),
                   .weight_decay = scaled(options_.weight_decay, factors.weight_decay),
                   .trust = is_adapted(slices_[i]) ? options_.trust : 0.0,
                   .clip_norm = options_.clip_norm};
    }
  }

  void enqueue(const double* squares) override {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const Slice& slice = slices_[i];
      if (is_adapted(slice)) {
        sum_of_squares(device_, values(slice), &norms_[i].parameters);
        sum_of_squares(device_, gradients(slice), &norms_[i].gradients);
      }
      lars_update(device_, values(slice), gradients(slice), part(velocity_, slice), steps_.at(i),
                  norms_.at(i), squares);
    }
  }

  DeviceArray velocity_;
  HostArray<LarsStep> steps_;
  HostArray<LarsNorms> norms_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lars(Device& device, Parameters& parameters,
                                     const OptimizerOptions& options) {
  return std::make_unique<Lars>(device, parameters, options);
}

}  // namespace dp::net
