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

// The planned bits a value at `progress`, the fraction of the run so far. Their mean over the run
// is `mean`:
//
//     mean * c * first^max(0, 1 - 2 progress)     with c so that the mean over the run is `mean`
//
// and first = 6, or less if the run would otherwise begin with more than 2.5 bits.
// A run begins finer than it ends, since error feedback delivers late, and a short run ends before
// that. If the length is not known (progress below 0), the result is `mean`.
[[nodiscard]] double planned_bits(double mean, double progress);
// The integral of the plan from 0 to progress (at least 0); planned_up_to(mean, 1) is `mean`.
[[nodiscard]] double planned_up_to(double mean, double progress);

// The distance of a run of known length from its plan, by site. For a step that takes the fraction
// dp of the run and has sent b bits a value, with P = planned_up_to, the debt is
//
//     debt = sum of (b dp - factor * (P(end) - P(begin)))        over the steps that sent anything
//
// The rest of the plan pays for it: all later steps, the next ones and the last ones, by the same
// fraction of their bits. Hence the mean comes right, and the correction does not concentrate on
// the fine steps at the beginning.
class RunDebt {
 public:
  static constexpr double kMostShare = 0.5;  // the largest fraction of a step's bits that pays
  // A debt is spread over at least this many steps, so that the last steps do not follow the noise
  // of the steps before them.
  static constexpr double kLeastSteps = 8.0;

  // Call it before each step. mean: of the plan; factor: the guard's, by which the plan is
  // multiplied. In a run of unknown length (progress below 0) there is no debt.
  void begin_step(double mean, double progress, double factor);
  // Call it after the step, with the bits a value that were sent, by site; below 0: nothing was
  // sent.
  void add(const std::array<double, kRateSites>& sent) { sent_ = sent; }
  [[nodiscard]] bool is_known() const { return progress_ >= 0.0; }
  // Factor for the planned bits of the current step.
  [[nodiscard]] double share(std::size_t site) const;
  void list_state(StateVisitor& visitor, const std::string& prefix);

 private:
  static constexpr double kUnit = 0x1p-32;  // of debts_, which are whole numbers
  std::array<std::int64_t, kRateSites> debts_ = {};
  // The last step's values. They are added when the progress of the next step is known.
  std::array<double, kRateSites> sent_ = {-1.0, -1.0};  // bits a value; below 0: nothing
  double progress_ = -1.0, factor_ = 1.0;
  // For the current step: bits left in the plan, and the bits of kLeastSteps steps.
  double left_ = 0.0, least_ = 0.0;
};

}  // namespace dp
