// The rate governor: before each step it sets how finely gradients are rounded, and after the step
// it learns from the bytes that were sent.
//
// A codec has a rate if its bits a value (ecq:bits=, auto) or its error (ecq:error=) are given. The
// governor then plans the bits of each training step, finds the quantiser's step sizes for them
// (rate_control.hpp), and raises the bits if residuals grow too much (rate_guard.hpp). With `auto`
// it follows the bandwidths of the links (auto_rate.hpp). Its decisions are the same on all ranks,
// because they depend only on what all ranks know: the plan, and the rate notes of the messages.
//
// The calls of a step, in their order:
//     begin_step
//     follow           only if looks_at_values()
//     order            the exchange's input
//     watch()->...     with `auto`: the step's times
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
  std::string compress;  // as the user spelt it, for error messages
  std::string topology;
  std::optional<RateLimits> limits = std::nullopt;  // of `auto`
  // GradientSyncOptions::planned_bits
  std::vector<double> planned_bits = {};
  bool is_adam = false;  // velocities are Adam's steps
};

// A round is an exchange in a run with --sync-every, in which only some training steps have an
// exchange. The values of a round are known before it begins, and they may differ much from the
// last round's. Hence, if the codec has a rate (has_rate), the ranks examine the values first,
// unless hidden_share is above 0.
struct RatedRound {
  std::uint64_t number = 0;
  // The fraction of the computing time between two exchanges that overlaps an exchange. If it is 0,
  // GradientSync::begin_step() is collective.
  double hidden_share = 0.0;
  // The expected ratio of this round's values to the last round's; the same on all ranks.
  double value_ratio = 1.0;
};

class RateGovernor {
 public:
  // Replaces numbers by their sums over all ranks. Collective.
  using SumOverRanks = std::function<void(std::span<std::int64_t>)>;

  // `spec` has a rate (has_rate).
  RateGovernor(const CodecSpec& spec, RateGovernorOptions options);

  // Call it before the first step. `watch` is given with `auto`, unless this rank sends nothing.
  void connect(int rank, int ranks, std::optional<StepWatch> watch);

  // ---- before a step
  // progress: the fraction of the run before this step; negative if it is not known. started_s: see
  // StepWatch::last_is_over.
  void begin_step(std::uint64_t step, double progress, double now_s,
                  std::span<const double> started_s);
  // Whether this step's values are examined before their exchange.
  [[nodiscard]] bool looks_at_values() const;
  // Returns this rank's part of a sum over ranks, computed from its own values. Add the parts of
  // all ranks and pass the sum to follow().
  [[nodiscard]] std::array<std::int64_t, 2> own_step(const MagnitudeHistogram& values) const;
  void follow(const std::array<std::int64_t, 2>& sum) { controller_.follow(sum); }
  // The order for the exchange. Its pointers are valid until end_step().
  [[nodiscard]] RateOrder order(double now_s);

  // ---- after a step
  // is_finite: false if all ranks skip the step. grown_bucket: see StepVerdict.
  void end_step(const RateTally& tally, bool is_finite, std::optional<std::size_t> grown_bucket,
                const SumOverRanks& sum);
  [[nodiscard]] const RateReport& report() const { return report_; }

  [[nodiscard]] bool is_auto() const { return options_.limits.has_value(); }
  // Null without `auto`.
  [[nodiscard]] StepWatch* watch() { return watch_ ? &*watch_ : nullptr; }

  // ---- between steps, the same on all ranks
  // Whether the user gave the mean bits a value (bits=). If so, set_mean_bits() can change this
  // mean.
  [[nodiscard]] bool has_mean_bits() const { return mean_bits_ > 0.0 && !is_auto(); }
  // Throws Error(usage) for a number that bits= does not allow.
  void set_mean_bits(double bits);
  // Call it before each round; from the first call on, all exchanges are rounds.
  void set_round(const RatedRound& round);
  // Because of momentum, a gradient is part of several exchanges; `count` is their number. The
  // limit of residuals (growth= of ecq) is multiplied by `count`.
  void set_exchanges_of_gradient(double count) { exchanges_of_gradient_ = count; }
  // From now on gradients are `scale` times as large as at the start of the run.
  void set_scale(double scale) { controller_.set_scale(scale); }
  // Call it when later values will differ from the values so far. Finds the step sizes anew and
  // forgets the times of steps.
  void start_anew(double scale);
  void list_state(StateVisitor& visitor);

 private:
  void check(bool has_feedback) const;
  [[nodiscard]] std::optional<std::size_t> planned_from(std::uint64_t step) const;
  [[nodiscard]] double guarded(double bits) const;
  // Whether each segment adapts the common step size to its own values. This is not done if the
  // step size follows from the values of all ranks, or if the exchange must have a wanted error.
  [[nodiscard]] bool is_evened() const { return !is_foreseen() && wanted_error_ == 0.0; }
  // Whether the step size follows from the values of the exchange itself.
  [[nodiscard]] bool is_foreseen() const { return round_ && round_->hidden_share == 0.0; }
  [[nodiscard]] double most_growth() const { return most_growth_ * exchanges_of_gradient_; }
  [[nodiscard]] double next_bits(const RateTally& tally);
  void move_steps(const RateTally& tally, double next_bits, const SumOverRanks& sum);
  void skip_step();
  void take_squares(const RateTally& tally, std::optional<std::size_t> grown_bucket);
  void report_plan();
  void report_step(const RateTally& tally);

  RateGovernorOptions options_;
  // The mean bits a value of the run (bits=) and the wanted error (error=); 0 if not given.
  double mean_bits_, wanted_error_;
  double most_growth_;  // limit of residual / gradient; 0: none
  double exchanges_of_gradient_ = 1.0;
  std::optional<RatedRound> round_;
  std::uint64_t rank_ = 0, ranks_ = 1;
  RateController controller_;
  ResidualGuard guard_;
  DenseChoice dense_choice_;
  // This rank's report from the last measured step: the code of the rank's errors, and 1 if the
  // rank's residual has grown beyond the limit, otherwise 0.
  std::array<std::int64_t, 2> told_ = {RateErrors::kNone, 0};
  std::optional<StepWatch> watch_;

  // State of the running training step.
  std::uint64_t number_ = 0;  // the number of the step or of the round
  double progress_ = -1.0;
  double planned_bits_;
  std::optional<std::size_t> planned_at_;  // index into options_.planned_bits
  // Filled in the first step.
  std::unique_ptr<std::array<MagnitudeHistogram, kRateSites>> histograms_;

  RateReport report_;
};

}  // namespace dp
