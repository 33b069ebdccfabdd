#include "app/training/replica/round_sync.hpp"

#include <string>
#include <utility>

#include "kernels/mix.hpp"

namespace dp {

RoundSync::RoundSync(Device& device, std::span<float> parameters, std::span<float> gradient,
                     std::size_t ranks, const OuterOptions& options, bool has_delay)
    : device_(device),
      parameters_(parameters),
      gradient_(gradient),
      ranks_(static_cast<double>(ranks)),
      options_(options),
      common_(device, parameters.size()),
      velocity_(device, parameters.size()),
      step_(device) {
  if (has_delay) sent_ = DeviceArray(device, parameters.size());
  const bool has_momentum = options.momentum > 0.0;
  step_[0] = {.learning_rate = static_cast<float>(options.learning_rate),
              .momentum = static_cast<float>(options.momentum),
              .has_nesterov = has_momentum};
}

void RoundSync::begin() {
  blend_values(device_, parameters_, common_.values(), 1.0f);
  begin_at_zero();
}

bool RoundSync::ends_round(std::size_t length, bool must_end, double learning_rate) {
  if (steps_ == 0) length_ = length;
  ++steps_;
  // Each learning rate is rounded to a float, because its last bit may depend on the host's math
  // library. Ranks compare their sums, so the sums must be equal.
  rate_sum_ += static_cast<double>(static_cast<float>(learning_rate));
  return steps_ >= length_ || must_end;
}

double RoundSync::take_rate_ratio() {
  const double mean = rate_sum_ / static_cast<double>(steps_);
  if (mean <= 0.0) return 1.0;
  const double before = std::exchange(rate_before_, mean);
  return before > mean ? mean / before : 1.0;
}

void RoundSync::write_difference(double share) {
  blend_values(device_, parameters_, gradient_, 1.0f);
  subtract_from_values(device_, common_.values(), gradient_, static_cast<float>(share / ranks_));
}

void RoundSync::take_sum() {
  sgd_update(device_, common_.values(), gradient_, velocity_.values(), step_.at(0), nullptr);
  go_back();
}

void RoundSync::go_back() {
  return_to_common();
  begin_at_zero();
  ++number_;
}

void RoundSync::leave() {
  blend_values(device_, parameters_, sent_.values(), 1.0f);
  begin_at_zero();
  ++number_;
}

void RoundSync::take_late_sum() {
  subtract_from_values(device_, parameters_, sent_.values(), 1.0f);
  sgd_update(device_, common_.values(), gradient_, velocity_.values(), step_.at(0), nullptr);
  return_to_common();
}

void RoundSync::add_own_steps() { add_values(device_, sent_.values(), parameters_); }

void RoundSync::drop_own_steps() {
  return_to_common();
  dropped_ = steps_;
}

void RoundSync::swap_common() { swap_values(device_, common_.values(), parameters_); }

void RoundSync::return_to_common() { blend_values(device_, common_.values(), parameters_, 1.0f); }

void RoundSync::list_state(StateVisitor& visitor) {
  // Because of this prefix, the hash of the replicated parameters covers `common`
  // (agree_on_state()).
  visitor.values(std::string(kParameterState) + "common", common_.values(), StateShare::replicated,
                 StatePlace::device);
  if (options_.momentum > 0.0) {
    visitor.values("rounds/velocity", velocity_.values(), StateShare::replicated,
                   StatePlace::device);
  }
  visitor.value("rounds/steps", steps_);
  visitor.value("rounds/dropped", dropped_);
  visitor.value("rounds/length", length_);
  visitor.value("rounds/number", number_);
  visitor.value("rounds/rate_sum", rate_sum_);
  visitor.value("rounds/rate_before", rate_before_);
}

}  // namespace dp
