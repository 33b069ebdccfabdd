#include "comm/rate/rate_plan.hpp"

#include <algorithm>
#include <cmath>

namespace dp {
namespace {

// The first training step of a run has kFirst times the bits of the steps in the second half of the
// run, but at most kMostFirstBits.
constexpr double kFirst = 6.0, kMostFirstBits = 2.5;

// The factor that normalises the plan to a mean of 1 if the first step has `first` times the bits
// of the last step.
double plan_factor(double first) { return 2.0 / ((first - 1.0) / std::log(first) + 1.0); }

// The first step's bits divided by the last step's.
double first_of_plan(double mean) {
  double first = kFirst;
  while (first > 1.05 && mean * plan_factor(first) * first > kMostFirstBits) first *= 0.98;
  return first;
}

}  // namespace

double planned_bits(double mean, double progress) {
  if (progress < 0.0) return mean;
  const double first = first_of_plan(mean);
  return mean * plan_factor(first) * std::pow(first, std::max(0.0, 1.0 - 2.0 * progress));
}

double planned_up_to(double mean, double progress) {
  const double first = first_of_plan(mean);
  const double falling = std::min(progress, 0.5);
  const double sum = (first - std::pow(first, 1.0 - 2.0 * falling)) / (2.0 * std::log(first));
  return mean * plan_factor(first) * (sum + std::max(0.0, progress - 0.5));
}

void RunDebt::begin_step(double mean, double progress, double factor) {
  if (progress < 0.0) {
    *this = {};
    return;
  }
  const double step = is_known() ? std::max(0.0, progress - progress_) : 0.0;
  if (step > 0.0) {
    const double planned =
        factor_ * (planned_up_to(mean, progress) - planned_up_to(mean, progress_));
    for (std::size_t s = 0; s < kRateSites; ++s) {
      if (sent_[s] >= 0.0) debts_[s] += std::llround((sent_[s] * step - planned) / kUnit);
    }
  }
  sent_.fill(-1.0);
  progress_ = progress;
  factor_ = factor;
  left_ = factor * std::max(0.0, mean - planned_up_to(mean, progress));
  least_ = factor * planned_bits(mean, progress) * kLeastSteps * step;
}

double RunDebt::share(std::size_t site) const {
  const double pays = std::max(left_, least_);
  if (pays <= 0.0) return 1.0;
  const double debt = static_cast<double>(debts_[site]) * kUnit;
  return 1.0 - std::clamp(debt / pays, -kMostShare, kMostShare);
}

void RunDebt::list_state(StateVisitor& visitor, const std::string& prefix) {
  visitor.values(prefix + "/run/debts", std::span<std::int64_t>(debts_), StateShare::replicated);
  visitor.values(prefix + "/run/sent", std::span<double>(sent_), StateShare::replicated);
  visitor.value(prefix + "/run/progress", progress_);
  visitor.value(prefix + "/run/factor", factor_);
}

}  // namespace dp
