// The plan of a run with ecq:bits=X: the bits a value at each place of the run, and what a run is
// in debt to it. Pure arithmetic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/rate/rate_guard.hpp"
#include "kernels/base/state.hpp"

namespace dp {

// The bits a value at a place of a run, of which `mean` is the mean over the run: `mean` times
//
//     c * first^max(0, 1 - 2 progress)     with c so that the mean over the run is 1
//
// and first = 6, or less where a run would begin with more than 2.5 bits.
// A run begins finer than it ends, since feedback delivers late what was dropped, and a short run
// ends before that. Without a known length (progress below 0) it is `mean` throughout.
[[nodiscard]] double planned_bits(double mean, double progress);
// The part of `mean` that the plan has for the run up to that place: its integral from 0 to
// progress, which is not below 0.
[[nodiscard]] double planned_up_to(double mean, double progress);

// How far a run of known length is from its plan, by site. With a step that takes the share dp of
// the run, b the bits a value that it has sent and P the plan up to a place, its debt is
//
//     debt = sum of (b dp - factor * (P(end) - P(begin)))        over the steps that sent anything
//
// and what is left of the plan pays for it: all later steps, the next ones and the last ones, by
// the same share of their bits. So the mean comes right without a trace where the plan is fine.
class RunDebt {
 public:
  static constexpr double kMostShare = 0.5;  // of a step's bits that pays
  // A debt is spread over at least this many steps, so that the last steps do not follow the noise
  // of earlier ones.
  static constexpr double kLeastSteps = 8.0;

  // Before each step. mean: of the plan; factor: the guard's, by which the plan is larger. In a run
  // of unknown length (progress below 0) there is no debt.
  void begin_step(double mean, double progress, double factor);
  // After it: the bits a value that it has sent, by site; below 0: nothing.
  void add(const std::array<double, kRateSites>& sent) { sent_ = sent; }
  [[nodiscard]] bool is_known() const { return progress_ >= 0.0; }
  // Factor for the planned bits of the current step.
  [[nodiscard]] double share(std::size_t site) const;
  void list_state(StateVisitor& visitor, const std::string& prefix);

 private:
  static constexpr double kUnit = 0x1p-32;  // whole numbers, as below
  std::array<std::int64_t, kRateSites> debts_ = {};
  // Of the last step, which counts when the place of the next one is known.
  std::array<double, kRateSites> sent_ = {-1.0, -1.0};  // bits a value; below 0: nothing
  double progress_ = -1.0, factor_ = 1.0;
  // For the current step: bits left in the plan, and the bits of kLeastSteps steps.
  double left_ = 0.0, least_ = 0.0;
};

}  // namespace dp
