// The plan of a run with ecq:bits=X: the bits a value at each point of the run, and the run's debt
// to the plan. Pure arithmetic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/rate/rate_guard.hpp"
#include "kernels/base/state.hpp"

namespace dp {

// The planned bits a value at `progress`, the fraction of the run so far:
//
//     mean * c * first^max(0, 1 - 2 progress)     with c so that the mean over the run is `mean`
//
// Here `first` is 6, or less if the run would otherwise begin with more than 2.5 bits. A run begins
// with more bits than it ends with, since error feedback delivers values late, and a short run
// would end before it has delivered them. If the length of the run is not known (progress below 0),
// the result is `mean`.
[[nodiscard]] double planned_bits(double mean, double progress);
// The integral of the plan from 0 to progress (at least 0); planned_up_to(mean, 1) is `mean`.
[[nodiscard]] double planned_up_to(double mean, double progress);

// The debt of a run of known length, by site: by how much the run has exceeded its plan so far. If
// a training step takes the fraction dp of the run and sends b bits a value, then, with P =
// planned_up_to and the guard's factor (begin_step),
//
//     debt = sum of (b dp - factor * (P(end) - P(begin)))        over the steps that sent anything
//
// The rest of the run repays the debt: all later training steps give up the same fraction of their
// bits. Hence the mean of the run comes right, and the correction does not concentrate on the steps
// with many bits at the beginning.
class RunDebt {
 public:
  static constexpr double kMostShare = 0.5;  // the largest fraction that a step gives up
  // A debt is spread over at least this many steps, so that the last steps do not follow the noise
  // of the steps before them.
  static constexpr double kLeastSteps = 8.0;

  // Call it before each step. `mean` is the plan's mean of bits a value, and `factor` the guard's
  // factor for the plan. In a run of unknown length (progress below 0) there is no debt.
  void begin_step(double mean, double progress, double factor);
  // Call it after the step, with the bits a value that were sent, by site; below 0: nothing was
  // sent.
  void add(const std::array<double, kRateSites>& sent) { sent_ = sent; }
  [[nodiscard]] bool is_known() const { return progress_ >= 0.0; }
  // Factor for the planned bits of the current step.
  [[nodiscard]] double share(std::size_t site) const;
  void list_state(StateVisitor& visitor, const std::string& prefix);

 private:
  static constexpr double kUnit = 0x1p-32;  // the unit of debts_, which are whole numbers
  std::array<std::int64_t, kRateSites> debts_ = {};
  // The values of the last step. The debt includes them when the progress of the next step is
  // known.
  std::array<double, kRateSites> sent_ = {-1.0, -1.0};  // bits a value; below 0: nothing
  double progress_ = -1.0, factor_ = 1.0;
  // For the current step: bits left in the plan, and the bits of kLeastSteps steps.
  double left_ = 0.0, least_ = 0.0;
};

}  // namespace dp
