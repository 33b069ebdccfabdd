// The rate governor: before each step it sets how finely gradients are rounded, and after the step
// it learns from the bytes that were sent.
//
// A codec has a rate if its bits a value (ecq:bits=, auto) or its error (ecq:error=) are given. The
// governor then plans the bits of each step, finds the quantiser steps for them (rate_control.hpp),
// raises the bits if residuals grow too much (rate_guard.hpp), and with auto follows the links'
// rates (auto_rate.hpp). Its decisions are the same on all ranks, because they depend only on what
// all ranks know: the plan, and the rate notes of the messages.
//
// The calls of a step, in their order:
//     begin_step
//     follow           only if looks_at_values()
//     order            the exchange's input
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
  std::string compress;  // the user's spelling, for messages
  std::string topology;
  std::optional<RateLimits> limits = std::nullopt;  // of auto
  // GradientSyncOptions::planned_bits
  std::vector<double> planned_bits = {};
  bool is_adam = false;  // velocities are Adam's steps
};

// An exchange in rounds (--sync-every): only some steps have one. Its values are known before it
// begins, and they differ too much from the last round's, so a codec with a rate examines them
// first.
struct RatedRound {
  std::uint64_t number = 0;
  // The fraction of the computing time between two exchanges that overlaps an exchange. If it is 0,
  // begin_step() of the exchange is collective.
  double hidden_share = 0.0;
  // The expected ratio of its values to the last round's; the same on all ranks.
  double value_ratio = 1.0;
};

class RateGovernor {
 public:
  // Replaces numbers by their sums over all ranks. Collective.
  using SumOverRanks = std::function<void(std::span<std::int64_t>)>;

  // `spec` has a rate (has_rate).
  RateGovernor(const CodecSpec& spec, RateGovernorOptions options);

  // Call it before the first step. watch: with auto, unless this rank sends nothing.
  void connect(int rank, int ranks, std::optional<StepWatch> watch);

  // ---- before a step progress: the fraction of the run before this step; below 0: not known.
  // started_s: see StepWatch::last_is_over.
  void begin_step(std::uint64_t step, double progress, double now_s,
                  std::span<const double> started_s);
  // Whether this step's values are examined before their exchange.
  [[nodiscard]] bool looks_at_values() const;
  // This rank's part of the sum over ranks for follow(), from its own values.
  [[nodiscard]] std::array<std::int64_t, 2> own_step(const MagnitudeHistogram& values) const;
  void follow(const std::array<std::int64_t, 2>& sum) { controller_.follow(sum); }
  // The order for the exchange. Its pointers are valid until end_step().
  [[nodiscard]] RateOrder order(double now_s);

  // ---- after a step is_finite: false if all ranks skip the step. grown_bucket: see StepVerdict.
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
  // From the next exchange on, all exchanges are rounds.
  void set_round(const RatedRound& round);
  // The number of exchanges in which a gradient takes part, as momentum repeats it. The limit of
  // residuals (growth= of ecq) is multiplied by it.
  void set_exchanges_of_gradient(double count) { exchanges_of_gradient_ = count; }
  // Gradients are this many times as large as at the start of the run.
  void set_scale(double scale) { controller_.set_scale(scale); }
  // Later values will differ from the values so far: finds the quantiser steps anew, and forgets
  // times.
  void start_anew(double scale);
  void list_state(StateVisitor& visitor);

 private:
  void check(bool has_feedback) const;
  [[nodiscard]] std::optional<std::size_t> planned_from(std::uint64_t step) const;
  [[nodiscard]] double guarded(double bits) const;
  // Whether segments choose their own steps. If the values are examined before the exchange, all
  // segments take the common step.
  [[nodiscard]] bool is_evened() const { return !is_foreseen() && wanted_error_ == 0.0; }
  // Whether the quantiser step follows from the values of the exchange itself.
  [[nodiscard]] bool is_foreseen() const { return round_ && round_->hidden_share == 0.0; }
  [[nodiscard]] double most_growth() const { return most_growth_ * exchanges_of_gradient_; }
  [[nodiscard]] double next_bits(const RateTally& tally);
  void move_steps(const RateTally& tally, double next_bits, const SumOverRanks& sum);
  void skip_step();
  void take_squares(const RateTally& tally, std::optional<std::size_t> grown_bucket);
  void report_plan();
  void report_step(const RateTally& tally);

  RateGovernorOptions options_;
  // The mean of the run (bits=) or the wanted error (error=); 0: the other one is given.
  double mean_bits_, wanted_error_;
  double most_growth_;  // limit of residual / gradient; 0: none
  double exchanges_of_gradient_ = 1.0;
  std::optional<RatedRound> round_;
  std::uint64_t rank_ = 0, ranks_ = 1;
  RateController controller_;
  ResidualGuard guard_;
  DenseChoice dense_choice_;
  // This rank's report from the last measured step: the code of its errors, and whether its
  // residual has grown beyond the limit.
  std::array<std::int64_t, 2> told_ = {RateErrors::kNone, 0};
  std::optional<StepWatch> watch_;

  // The running step.
  std::uint64_t number_ = 0;  // the number of the step or of the round
  double progress_ = -1.0;
  double planned_bits_;
  std::optional<std::size_t> planned_at_;  // index into options_.planned_bits
  // Filled in the first step.
  std::unique_ptr<std::array<MagnitudeHistogram, kRateSites>> histograms_;

  RateReport report_;
};

}  // namespace dp
