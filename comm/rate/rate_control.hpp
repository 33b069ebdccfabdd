// Rate control: one quantiser step for all tensors and ranks, chosen anew before every training
// step.
//
// Gradients pass two *sites* where they are rounded: a rank's own values on their way to the rank
// that adds them (partial sums), and the sum on its way to all (totals). Each site has a step of
// its own, since sums are larger. One step for all tensors gives the least squared error at a given
// number of bits ("equal slope").
//
// Every message of such an exchange carries a *rate note* behind its header: the bytes that the
// segment's partial sums took so far, a wish (RateWish) or an error (RateErrors), and an alarm. The
// note of a total is complete, and every rank gets every total. Hence all ranks know the same bytes
// and wishes after a step, and compute the same quantiser steps for the next one without another
// message. Nothing here communicates, reads a clock, or fails.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/rate/rate_guard.hpp"
#include "comm/rate/rate_plan.hpp"
#include "kernels/base/state.hpp"

namespace dp {

struct CodecSpec;

// Whether the codec has a rate, which all ranks agree on and from which its step follows: bits= or
// error= is given.
[[nodiscard]] bool has_rate(const CodecSpec& spec);

// The bits a value that a rank's link can carry, coded for a message: a whole number that grows
// with their logarithm. The least of all ranks' wishes decides.
class RateWish {
 public:
  static constexpr std::uint16_t kNone = 0xffff;

  RateWish() = default;
  // Codes 2^-12 bits a value and more, in steps of a factor 2^(1/2048). No wish if `bits` is more
  // than 2^18 or not a number.
  static RateWish of_bits(double bits);
  static RateWish of_code(std::uint16_t code) { return RateWish(code); }

  [[nodiscard]] std::uint16_t code() const { return code_; }
  [[nodiscard]] bool is_given() const { return code_ != kNone; }
  [[nodiscard]] double bits() const;
  void meet(RateWish other) { code_ = std::min(code_, other.code_); }

 private:
  explicit RateWish(std::uint16_t code) : code_(code) {}
  std::uint16_t code_ = kNone;
};

// A rank's report in a rate note (exchange/message_header.hpp), or the combination of several.
struct RateWord {
  static constexpr std::uint16_t kNone = 0xffff;
  // The meaning of `code`. The same on all ranks in all steps.
  enum class Kind : std::uint8_t { wish, errors };

  Kind kind = Kind::wish;
  std::uint16_t code = kNone;  // a RateWish (auto) or RateErrors (error=)
  bool has_alarm = false;      // a residual has grown too much (ResidualGuard)

  // Combines it with `other`, which is treated as having the same kind.
  void meet(const RateWord& other) {
    has_alarm = has_alarm || other.has_alarm;
    if (kind == Kind::wish) {
      code = std::min(code, other.code);
    } else {
      RateErrors errors = RateErrors::of_code(code);
      errors.meet(RateErrors::of_code(other.code));
      code = errors.code();
    }
  }
};

// The bytes that one step has sent, over all ranks. The same on all ranks, except own_squares.
struct RateTally {
  struct Site {
    std::uint64_t bytes = 0;   // of payloads; a forwarded payload counts once
    std::uint64_t values = 0;  // encoded in them

    [[nodiscard]] double bits() const {
      return values == 0 ? 0.0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(values);
    }
  };
  std::array<Site, kRateSites> sites;
  RateWord word;
  SiteSquares own_squares;  // this rank's, if RateOrder asks for them

  [[nodiscard]] RateWish wish() const { return RateWish::of_code(word.code); }
  [[nodiscard]] RateErrors errors() const { return RateErrors::of_code(word.code); }
  [[nodiscard]] Site& operator[](RateSite site) { return sites[static_cast<std::size_t>(site)]; }
  [[nodiscard]] const Site& operator[](RateSite site) const {
    return sites[static_cast<std::size_t>(site)];
  }
  RateTally& operator+=(const RateTally& more);
  [[nodiscard]] bool is_empty() const { return (*this)[RateSite::total].values == 0; }
  // The mean of both sites.
  [[nodiscard]] double bits() const;
};

// A histogram of magnitudes, in quarters of an octave.
class MagnitudeHistogram {
 public:
  static constexpr std::size_t kBins = 1024;

  MagnitudeHistogram() : counts_(kBins) {}
  // Adds values + residual (may be null). Values that are not finite are left out.
  void add(std::span<const float> values, const float* residual);
  [[nodiscard]] std::span<std::int64_t> counts() { return counts_; }
  // The entropy, in bits a value, of the values rounded to whole multiples of `step`.
  [[nodiscard]] double bits(double step) const;
  // The least step, to 1 %, with which the values take at most `bits` bits each; 0 if all values
  // are 0.
  [[nodiscard]] double step_for(double bits) const;
  // norm(rounding error) / norm(values) for rounding to whole multiples of `step`; 0 if all are 0.
  [[nodiscard]] double relative_error(double step) const;
  // The largest step, to 1 %, with at most this relative error; 0 if all values are 0.
  [[nodiscard]] double step_for_error(double relative_error) const;

 private:
  // Empty if all values are 0.
  [[nodiscard]] std::optional<double> largest() const;

  std::vector<std::int64_t> counts_;
};

// For segments that choose their own steps (segment_rates.hpp), by site.
struct EvenOrder {
  // Bits a value, in the mean of all segments. 0: segments use the common step.
  std::array<double, kRateSites> bits = {};
  std::array<double, kRateSites> share_factors = {1.0, 1.0};  // factors for their shares
};

// The quantiser steps in force. The exchange's thread reads it during a training step.
struct RateOrder {
  std::array<float, kRateSites> steps = {};  // 0: the codec chooses a step for each segment
  unsigned dense_bits = 0;                   // EncodeContext::dense_bits
  EvenOrder even = {};
  RateWord word = {};             // of this rank
  bool measures_squares = false;  // fill RateTally::own_squares
  bool masks_velocities = true;   // for buckets with Bucket::Velocity::masked
  // If not null, encoded values are counted there, by site.
  std::array<MagnitudeHistogram, kRateSites>* histograms = nullptr;

  [[nodiscard]] float step(RateSite site) const { return steps[static_cast<std::size_t>(site)]; }
};

// The rate of a step. The same on all ranks, except for this rank's own values, which are marked.
// NaN without a rate.
struct RateReport {
  double planned_bits = kNothing;                                    // a value
  std::array<double, kRateSites> bits = {kNothing, kNothing};        // as sent
  std::array<double, kRateSites> next_steps = {kNothing, kNothing};  // of the quantiser
  // With auto. wished_bits: the least of all ranks' hidden_bits, which the next plan follows. This
  // rank's own: its link's rate, the bits that would hide behind its computation, and the bucket
  // from which on its link has no time left.
  double wished_bits = kNothing;
  double link_bytes_per_s = kNothing, hidden_bits = kNothing;
  std::optional<std::size_t> binding_bucket = std::nullopt;
  // This rank's own, as measured last: norm(residual) / norm(encoded values), norm(residual) /
  // norm(gradient) (ResidualGuard), and the bucket in which the latter is largest.
  double relative_error = kNothing, residual_growth = kNothing;
  double most_growth = 0.0;  // the growth at which the guard acts; 0: never
  std::optional<std::size_t> grown_bucket = std::nullopt;
  double guard_factor = kNothing;  // factor of the planned bits

  static constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
  [[nodiscard]] double mean_bits() const { return (bits[0] + bits[1]) / 2; }
  // For logs.
  [[nodiscard]] double binding_number() const {
    return binding_bucket ? static_cast<double>(*binding_bucket) : kNothing;
  }
};

// Chooses the quantiser steps so that the planned bits a value are sent in the mean.
//
// The values of the first training step are counted; the quantiser steps of the second one follow
// from this histogram. From then on, for each site, with b the bits a value that a training step
// has taken and B the planned bits,
//
//     log step += clamp(gain * (b / B' - 1) - log(next B / B) / 2, +-kMostChange)
//     gain = min(kMostGain, B / 2)
//     B' = B * (1 - clamp(debt / kHorizon, +-kMostDebt))
//
// where debt is the sum of b / B - 1 so far, limited to the range in which it has an effect; it
// makes the mean over the last steps right, too. In a run of known length RunDebt gives B' instead,
// and the mean of the run comes right. The second term anticipates a change of the plan: in the
// long run bits fall about as the inverse square of the step. The gain falls with the bits, because
// residuals then respond later: a larger step lowers the bits at first by far more than in the long
// run, when residuals have grown. The error term is b / B - 1 and not log(b / B), since the mean of
// b is controlled: at few bits the logarithm leads to a limit cycle with 1.6 times the bits.
//
// With an even_order() segments choose their own steps, for B' bits in the mean, and the common
// step is the reference of their shares. The bits beyond B' show by how much the common step is
// off. By then the shares have absorbed an eighth of this error (SegmentRates::kWeight). Their
// share factors undo that, and
//
//     log step += clamp(b / B' - 1 - log(next B / B) / 2, +-kMostEvenChange)
//
// The common step responds at once, but the bits of a single training step move it only a little. A
// slower response, a larger upward move after a full step, or a faster repayment of the debt makes
// full and nearly empty steps alternate. Values are then delivered late, and runs with few bits
// become unstable (ResNet-20, 0.03 bits, masked velocities: a loss of 1.53 instead of 1.34).
class RateController {
 public:
  static constexpr double kMostGain = 0.15, kMostChange = 0.14;  // 15 % a step
  static constexpr double kHorizon = 30.0, kMostDebt = 0.25;
  static constexpr double kMostEvenChange = 0.35, kMostFactor = 8.0;

  // Call it after the first step, with the summed histograms of all ranks.
  void start(const std::array<MagnitudeHistogram, kRateSites>& histograms, double bits);
  void start_for_error(const std::array<MagnitudeHistogram, kRateSites>& histograms, double error);
  [[nodiscard]] bool is_started() const { return is_started_ != 0; }
  // The quantiser steps must be found anew.
  void stop() { is_started_ = 0; }
  // For exchanges whose values are known in advance and differ from the last exchange's (rounds).
  // Each rank finds the step with which its own values would take the planned bits; own_step()
  // codes it as this rank's part of a sum over ranks. follow() takes the sum: the steps in force
  // change by the same factor as the geometric mean of the ranks' own steps has changed since the
  // last call.
  [[nodiscard]] static std::array<std::int64_t, 2> own_step(double step);  // 0: all values are 0
  void follow(const std::array<std::int64_t, 2>& sum);
  // Call it after each later step; `bits` was planned for it, `next_bits` is for the next one.
  // is_even: the step had an even_order().
  void update(const RateTally& tally, double bits, double next_bits, bool is_even = false);
  // Gradients are this many times as large as at the start of the run: the quantiser steps are
  // scaled along at once, and follow() begins anew.
  void set_scale(double scale);
  // The next step's values are expected to be this many times as large as the last step's.
  void scale_steps(double ratio);
  // The order for a step with this many planned bits.
  [[nodiscard]] EvenOrder even_order(double bits) const;
  // The caller calls its begin_step() and add().
  [[nodiscard]] RunDebt& run_debt() { return run_debt_; }
  // Instead, if a relative error is wanted: log step -= kMostGain * log(error / wanted).
  void update(const RateErrors& errors);
  [[nodiscard]] std::array<float, kRateSites> steps() const;
  void list_state(StateVisitor& visitor, const std::string& prefix);

 private:
  void start_with(std::array<double, kRateSites> steps);
  // B' of the site.
  [[nodiscard]] double wanted(double bits, std::size_t site) const;

  // Base-2 logarithms of the steps, debts and share factors, as whole multiples of kUnit: ranks
  // agree even if their logarithms differ in the last bit.
  static constexpr double kUnit = 1.0 / 4096.0;
  std::array<std::int64_t, kRateSites> log_steps_ = {}, debts_ = {}, log_factors_ = {};
  RunDebt run_debt_;
  std::int64_t is_started_ = 0;
  // The last result of follow(); kUnknown before the first.
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();
  std::int64_t followed_ = kUnknown;
  // Kept exactly, since a logarithm rounded to kUnit would be off by up to 1e-4. Its owner saves
  // it.
  double scale_ = 1.0;
};

}  // namespace dp
