#include "net/weight_average.hpp"

#include <cmath>
#include <utility>

#include "kernels/mix.hpp"

namespace dp::net {

namespace {

class ExponentialAverage final : public WeightAverage {
 public:
  ExponentialAverage(Device& device, Parameters& parameters, double decay)
      : WeightAverage(device, parameters, "ema"), share_(static_cast<float>(1.0 - decay)) {}

  void update(double) override { approach(updates_++ == 0 ? 1.0f : share_); }

 private:
  float share_;
};

class Lookahead final : public WeightAverage {
 public:
  Lookahead(Device& device, Parameters& parameters, std::uint64_t every, double share)
      : WeightAverage(device, parameters, "lookahead"), every_(every), share_(share) {}

  void update(double progress) override {
    if (++updates_ % every_ != 0) return;
    const double falling =
        1.0 - std::pow(0.95, static_cast<double>(every_)) * progress * progress * progress;
    approach(static_cast<float>(share_ > 0 ? share_ : falling));
    give_back();
  }

 private:
  std::uint64_t every_;
  double share_;
};

}  // namespace

WeightAverage::WeightAverage(Device& device, Parameters& parameters, std::string name)
    : device_(device),
      parameters_(parameters),
      name_(std::move(name)),
      values_(device, parameters.size()),
      statistics_(device, parameters.training_statistics().size()) {
  approach(1.0f);
}

void WeightAverage::approach(float share) {
  blend_values(device_, parameters_.values(), values_.values(), share);
  blend_values(device_, parameters_.training_statistics(), statistics_.values(), share);
}

void WeightAverage::give_back() {
  blend_values(device_, values_.values(), parameters_.values(), 1.0f);
  blend_values(device_, statistics_.values(), parameters_.training_statistics(), 1.0f);
}

void WeightAverage::swap() {
  swap_values(device_, values_.values(), parameters_.values());
  swap_values(device_, statistics_.values(), parameters_.training_statistics());
}

void WeightAverage::list_state(StateVisitor& visitor) {
  visitor.values(name_ + "/weights", values_.values(), StateShare::replicated, StatePlace::device);
  visitor.values(name_ + "/statistics", statistics_.values(), StateShare::own, StatePlace::device,
                 StateMerge::mean);
  visitor.value(name_ + "/updates", updates_);
}

std::unique_ptr<WeightAverage> make_exponential_average(Device& device, Parameters& parameters,
                                                        double decay) {
  return std::make_unique<ExponentialAverage>(device, parameters, decay);
}

std::unique_ptr<WeightAverage> make_lookahead(Device& device, Parameters& parameters,
                                              std::uint64_t every, double share) {
  return std::make_unique<Lookahead>(device, parameters, every, share);
}

}  // namespace dp::net
