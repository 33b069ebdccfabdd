// The governor of the rate: before each step it orders how finely gradients are rounded, and after
// it learns from the bytes that the step has sent.
//
// A codec has a rate if its bits a value (ecq:bits=, auto) or its error (ecq:error=) are given. The
// governor then plans the bits of each step, finds the quantiser steps for them (rate_control.hpp),
// sends more where residuals grow too much (rate_guard.hpp), and with auto follows what the links
// carry (auto_rate.hpp). It orders the same on all ranks, because it decides by what all of them
// know: the plan, and the rate notes of the messages.
//
// The calls of a step, in their order:
//     begin_step
//     follow           only if looks_at_values()
//     order            what the exchange gets
//     watch()->...     with auto: the step's times
//     end_step
//
// Nothing here communicates or reads a clock: the caller does both. A wrong combination of options
// is Error(usage).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/rate/auto_rate.hpp"
#include "comm/rate/rate_control.hpp"
#include "comm/rate/rate_guard.hpp"
#include "comm/rate/step_watch.hpp"
#include "kernels/base/state.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {

struct RateGovernorOptions {
  std::string compress;  // as the user gave it, for messages
  std::string topology;
  std::optional<RateLimits> limits = std::nullopt;  // of auto
  // GradientSyncOptions::planned_bits
  std::vector<double> planned_bits = {};
  bool is_adam = false;  // velocities are Adam's steps
};

// An exchange that only some steps have (rounds). Its values are known before it begins, and a
// codec with a rate looks at them: they are too unlike those of the last exchange.
struct RatedRound {
  std::uint64_t number = 0;
  // The fraction of the time between two exchanges, without waiting, in which steps run while an
  // exchange does. If it is 0, begin_step() of the exchange is collective.
  double hidden_share = 0.0;
};

class RateGovernor {
 public:
  // Adds numbers of all ranks, and puts the sums in their place. Collective.
  using SumOverRanks = std::function<void(std::span<std::int64_t>)>;

  // `spec` has a rate (has_rate).
  RateGovernor(const CodecSpec& spec, RateGovernorOptions options);

  // Before the first step. watch: with auto, if anything goes over the link.
  void connect(int rank, int ranks, std::optional<StepWatch> watch);

  // ---- before a step
  // progress: the fraction of the run before this step; below 0: not known. started_s: as
  // StepWatch::last_is_over has it.
  void begin_step(std::uint64_t step, double progress, double now_s,
                  std::span<const double> started_s);
  // Whether this step's values are looked at before they are exchanged.
  [[nodiscard]] bool looks_at_values() const;
  // This rank's part of the sum over ranks that follow() gets, for its own values.
  [[nodiscard]] std::array<std::int64_t, 2> own_step(const MagnitudeHistogram& values) const;
  void follow(const std::array<std::int64_t, 2>& sum) { controller_.follow(sum); }
  // Its pointers are valid until end_step().
  [[nodiscard]] RateOrder order(double now_s);

  // ---- after a step
  // is_finite: false: all ranks skip the step. grown_bucket: StepVerdict has it.
  void end_step(const RateTally& tally, bool is_finite, std::optional<std::size_t> grown_bucket,
                const SumOverRanks& sum);
  [[nodiscard]] const RateReport& report() const { return report_; }

  [[nodiscard]] bool is_auto() const { return options_.limits.has_value(); }
  // With auto; null without it.
  [[nodiscard]] StepWatch* watch() { return watch_ ? &*watch_ : nullptr; }

  // ---- between steps, the same on all ranks
  // Whether the user gave a mean of the bits, which can be changed.
  [[nodiscard]] bool has_mean_bits() const { return mean_bits_ > 0.0 && !is_auto(); }
  // Throws Error(usage) for a number that the key does not allow.
  void set_mean_bits(double bits);
  // The next exchange, and all later ones, are those of rounds.
  void set_round(const RatedRound& round) { round_ = round; }
  // A gradient comes into this many exchanges, as momentum makes it. Residuals may be as many times
  // as large before more bits are sent (growth= of ecq).
  void set_exchanges_of_gradient(double count) { exchanges_of_gradient_ = count; }
  // Gradients are this many times as large as at the start of the run.
  void set_scale(double scale) { controller_.set_scale(scale); }
  // Values will be unlike those so far: finds the quantiser steps anew, and forgets times.
  void start_anew(double scale);
  void list_state(StateVisitor& visitor);

 private:
  void check(bool has_feedback) const;
  [[nodiscard]] std::optional<std::size_t> planned_from(std::uint64_t step) const;
  [[nodiscard]] double guarded(double bits) const;
  // Whether segments find their own steps. A round looks at its values as a whole.
  [[nodiscard]] bool is_evened() const { return !round_ && wanted_error_ == 0.0; }
  // Whether the values of a step say what its plan needs.
  [[nodiscard]] bool is_foreseen() const { return round_ && round_->hidden_share == 0.0; }
  [[nodiscard]] double most_growth() const { return most_growth_ * exchanges_of_gradient_; }
  [[nodiscard]] double next_bits(const RateTally& tally);
  void move_steps(const RateTally& tally, double next_bits, const SumOverRanks& sum);
  void skip_step();
  void take_squares(const RateTally& tally, std::optional<std::size_t> grown_bucket);
  void report_plan();
  void report_step(const RateTally& tally);

  RateGovernorOptions options_;
  // A mean of the run or a wanted error; 0: the other one.
  double mean_bits_, wanted_error_;
  double most_growth_;  // of the residual over the gradient; 0: any
  double exchanges_of_gradient_ = 1.0;
  std::optional<RatedRound> round_;
  std::uint64_t rank_ = 0, ranks_ = 1;
  RateController controller_;
  ResidualGuard guard_;
  DenseChoice dense_choice_;
  // This rank's report, from the last step that it has measured: the code of its
  // errors, and whether its residual has grown beyond the most.
  std::array<std::int64_t, 2> told_ = {RateErrors::kNone, 0};
  std::optional<StepWatch> watch_;

  // The running step.
  std::uint64_t number_ = 0;  // of its exchange: the step's, or the round's
  double progress_ = -1.0;
  double planned_bits_;
  std::optional<std::size_t> planned_at_;  // in planned_bits of the options
  // Filled in the first step.
  std::unique_ptr<std::array<MagnitudeHistogram, kRateSites>> histograms_;

  RateReport report_;
};

}  // namespace dp
