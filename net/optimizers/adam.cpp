// Adam and AdamW (kernels/adam.hpp). Their state is the gradient's running mean and mean square,
// each as long as the parameters, and the number of updates so far. In slices with a momentum
// factor of 0 the gradient buffer already holds Adam's step (can_leave_step).
#include "kernels/adam.hpp"

#include <cstdint>

#include "kernels/sgd.hpp"
#include "net/optimizer.hpp"

namespace dp::net {

namespace {

class Adam final : public Optimizer {
 public:
  Adam(Device& device, Parameters& parameters, const OptimizerOptions& options)
      : Optimizer(device, parameters, options),
        mean_(device, parameters.size()),
        square_(device, parameters.size()) {
    use_one_group();
  }

  void list_state(StateVisitor& visitor) override {
    visitor.values("optimizer/mean", mean_.values(), StateShare::replicated, StatePlace::device);
    visitor.values("optimizer/square", square_.values(), StateShare::replicated,
                   StatePlace::device);
    visitor.value("optimizer/updates", updates_);
  }

 private:
  void prepare() override {
    steps_ = HostArray<AdamStep>(device_, slices_.size());
    given_ = HostArray<SgdStep>(device_, slices_.size());
  }
  [[nodiscard]] static bool is_given(const Slice& slice) { return slice.factors.momentum == 0.0; }

  void set_numbers(double learning_rate) override {
    ++updates_;
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const GroupFactors& factors = slices_[i].factors;
      const AdamSettings settings = {
          .learning_rate = learning_rate * factors.learning_rate,
          .beta1 = options_.beta1,
          .beta2 = options_.beta2,
          .epsilon = options_.epsilon,
          .weight_decay = static_cast<double>(options_.weight_decay) * factors.weight_decay,
          .is_decoupled = options_.kind == OptimizerKind::adamw,
          .clip_norm = options_.clip_norm};
      steps_[i] = adam_step(settings, updates_);
      given_[i] = {
          .learning_rate = static_cast<float>(settings.learning_rate),
          .momentum = 0.0f,
          .weight_decay = static_cast<float>(settings.is_decoupled ? settings.weight_decay : 0.0)};
    }
  }

  void enqueue(const double* squares) override {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const Slice& slice = slices_[i];
      if (is_given(slice)) {
        sgd_update(device_, values(slice), gradients(slice), part(mean_, slice), given_.at(i),
                   nullptr);
        continue;
      }
      adam_update(device_, values(slice), gradients(slice), part(mean_, slice),
                  part(square_, slice), steps_.at(i), squares);
    }
  }

  DeviceArray mean_, square_;
  HostArray<AdamStep> steps_;
  HostArray<SgdStep> given_;
  std::uint64_t updates_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(Device& device, Parameters& parameters,
                                     const OptimizerOptions& options) {
  return std::make_unique<Adam>(device, parameters, options);
}

}  // namespace dp::net
