// Stochastic gradient descent with momentum (kernels/sgd.hpp). Its state is the velocity, as long
// as the parameters.
#include "kernels/sgd.hpp"

#include "net/optimizer.hpp"

namespace dp::net {

namespace {

class Sgd final : public Optimizer {
 public:
  Sgd(Device& device, Parameters& parameters, const OptimizerOptions& options)
      : Optimizer(device, parameters, options), velocity_(device, parameters.size()) {
    use_one_group();
  }

  void list_state(StateVisitor& visitor) override {
    visitor.values("optimizer/velocity", velocity_.values(), StateShare::replicated,
                   StatePlace::device);
  }

 private:
  void prepare() override { steps_ = HostArray<SgdStep>(device_, slices_.size()); }

  void set_numbers(double learning_rate) override {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const GroupFactors& factors = slices_[i].factors;
      steps_[i] = {.learning_rate = scaled(learning_rate, factors.learning_rate),
                   .momentum = scaled(options_.momentum, factors.momentum),
                   .weight_decay = scaled(options_.weight_decay, factors.weight_decay),
                   .has_nesterov = options_.has_nesterov,
                   .clip_norm = options_.clip_norm};
    }
  }

  void enqueue(const double* squares) override {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const Slice& slice = slices_[i];
      sgd_update(device_, values(slice), gradients(slice), part(velocity_, slice), steps_.at(i),
                 squares);
    }
  }

  DeviceArray velocity_;
  HostArray<SgdStep> steps_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(Device& device, Parameters& parameters,
                                    const OptimizerOptions& options) {
  return std::make_unique<Sgd>(device, parameters, options);
}

}  // namespace dp::net
