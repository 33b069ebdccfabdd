// How finely the gradients of a run are rounded: one quantiser step for all tensors and ranks,
// chosen anew before every training step.
//
// Gradients pass two *sites* where they are rounded: a rank's own values on their way to the rank
// that adds them (partial sums), and the sum on its way to all (totals). Each site has a step of
// its own, since sums are larger. One step for all tensors gives the least squared error at a given
// number of bits ("equal slope").
//
// Every message of such an exchange carries a *rate note* behind its header: the bytes that the
// segment's partial sums took so far, a wish or what was dropped, and an alarm. The note of a total
// is complete, and every rank gets every total. So all ranks know the same bytes and wishes after a
// step and compute the same steps for the next one, without a message more. Nothing here
// communicates, reads a clock, or fails.
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

// Whether all ranks agree on a rate, from which the codec's step follows: bits= or error= is given.
[[nodiscard]] bool has_rate(const CodecSpec& spec);

// The rate that a rank can carry, as a message tells it: a whole number that grows with the
// logarithm of the bits a value. The least of all ranks' counts.
class RateWish {
 public:
  static constexpr std::uint16_t kNone = 0xffff;

  RateWish() = default;
  // From 2^-12 bits a value on, in steps of 2^(1/2048); more than 2^18 or not a number: no wish.
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

// The report of one rank in a rate note (exchange/message_header.hpp).
struct RateWord {
  static constexpr std::uint16_t kNone = 0xffff;
  // Which of the two `code` is. The same on all ranks, always.
  enum class Kind : std::uint8_t { wish, errors };

  Kind kind = Kind::wish;
  std::uint16_t code = kNone;  // a RateWish (auto) or RateErrors (error=)
  bool has_alarm = false;      // a residual has grown too much (ResidualGuard)

  // `other` is of the same kind, whatever it says.
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

// What one step has sent, over all ranks: the same on all of them but for what is said to be this
// rank's own.
struct RateTally {
  struct Site {
    std::uint64_t bytes = 0;   // of payloads, each counted once
    std::uint64_t values = 0;  // that they stand for

    [[nodiscard]] double bits() const {
      return values == 0 ? 0.0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(values);
    }
  };
  std::array<Site, kRateSites> sites;
  RateWord word;
  SiteSquares own_squares;  // where RateOrder asks for them

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

// How many values have which magnitude, in quarters of an octave.
class MagnitudeHistogram {
 public:
  static constexpr std::size_t kBins = 1024;

  MagnitudeHistogram() : counts_(kBins) {}
  // residual: null: there is none. Values that are not finite are left out.
  void add(std::span<const float> values, const float* residual);
  [[nodiscard]] std::span<std::int64_t> counts() { return counts_; }
  // The entropy, in bits a value, of these values in whole multiples of `step`.
  [[nodiscard]] double bits(double step) const;
  // The least step, to 1 %, with which they take at most so many bits; 0 if all values are 0.
  [[nodiscard]] double step_for(double bits) const;
  // The norm of what rounding to whole multiples drops over that of the values; 0 if all are 0.
  [[nodiscard]] double relative_error(double step) const;
  // The largest step, to 1 %, with so large an error at most; 0 if all values are 0.
  [[nodiscard]] double step_for_error(double relative_error) const;

 private:
  // Nothing where all values are 0.
  [[nodiscard]] std::optional<double> largest() const;

  std::vector<std::int64_t> counts_;
};

// Where segments find their own steps (segment_rates.hpp), by site.
struct EvenOrder {
  std::array<double, kRateSites> bits = {};  // a value, in the mean of all segments; 0: they do not
  std::array<double, kRateSites> share_factors = {1.0, 1.0};  // what their shares become times
};

// The steps in force. The exchange's thread reads it while a training step runs.
struct RateOrder {
  std::array<float, kRateSites> steps = {};  // 0: each segment has its codec's own
  unsigned dense_bits = 0;                   // EncodeContext::dense_bits
  EvenOrder even = {};
  RateWord word = {};             // of this rank
  bool measures_squares = false;  // of all that is encoded
  bool masks_velocities = true;   // those of Bucket::Velocity::masked
  // If set, the values that are encoded are counted, by site.
  std::array<MagnitudeHistogram, kRateSites>* histograms = nullptr;

  [[nodiscard]] float step(RateSite site) const { return steps[static_cast<std::size_t>(site)]; }
};

// What a step's rate was. The same on all ranks but for what is said to be this rank's own; NaN
// without a rate.
struct RateReport {
  double planned_bits = kNothing;                                    // a value
  std::array<double, kRateSites> bits = {kNothing, kNothing};        // that were sent
  std::array<double, kRateSites> next_steps = {kNothing, kNothing};  // of the quantiser
  // With auto: the least of the bits that would hide on the ranks' links, which the next plan
  // follows; and what this rank's link carries, the bits that would hide there, and from which
  // bucket on they would come too late.
  double wished_bits = kNothing;
  double link_bytes_per_s = kNothing, hidden_bits = kNothing;
  std::optional<std::size_t> binding_bucket = std::nullopt;
  // As measured last, in this rank's encodes: what was dropped over what was encoded, and over the
  // gradient (ResidualGuard), in all buckets and in the one where that is largest.
  double relative_error = kNothing, residual_growth = kNothing;
  double most_growth = 0.0;  // from which the guard acts; 0: never
  std::optional<std::size_t> grown_bucket = std::nullopt;
  double guard_factor = kNothing;  // of the bits

  static constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
  [[nodiscard]] double mean_bits() const { return (bits[0] + bits[1]) / 2; }
  // For logs.
  [[nodiscard]] double binding_number() const {
    return binding_bucket ? static_cast<double>(*binding_bucket) : kNothing;
  }
};

// Chooses the steps so that a mean of so many bits a value is sent.
//
// The first step's values are counted, and from this histogram come the steps of the second one.
// From then on, for each site, with b the bits that a training step has taken and B those planned
// for it,
//
//     log step += clamp(gain * (b / B' - 1) - log(next B / B) / 2, +-kMostChange)
//     gain = min(kMostGain, B / 2)
//     B' = B * (1 - clamp(debt / kHorizon, +-kMostDebt))
//
// where debt is the sum of b / B - 1 so far, kept within what counts: so the mean of the last steps
// comes right, too. In a run of known length B' is what RunDebt makes of B, and the mean of the run
// comes right. The second term foresees a change of the plan: in the long run bits fall about as
// the inverse square of the step. The gain falls with the bits, because residuals answer later
// then: a larger step first lowers the bits by far more than in the long run, when residuals have
// grown. The error is b / B - 1 and not log(b / B), since the mean of b is what counts: at low bits
// a log has a limit cycle with 1.6 times the bits.
//
// With an even_order() segments find steps of their own, for B' in the mean, and the common step is
// what their shares refer to. What they took beyond B' says by how much the common step is off, of
// which shares have taken over an eighth by then (SegmentRates::kWeight); they are told to give it
// back, and
//
//     log step += clamp(b / B' - 1 - log(next B / B) / 2, +-kMostEvenChange)
//
// The step answers at once, and one step's bits move it by little either way. A slower answer, a
// larger upward move after a full step, or a debt that is paid back faster make full and nearly
// empty steps alternate. Sums then come late, and runs with few bits become unstable (ResNet-20,
// 0.03 bits, masked velocities: a loss of 1.53 instead of 1.34).
class RateController {
 public:
  static constexpr double kMostGain = 0.15, kMostChange = 0.14;  // 15 % a step
  static constexpr double kHorizon = 30.0, kMostDebt = 0.25;
  static constexpr double kMostEvenChange = 0.35, kMostFactor = 8.0;

  // After the first step: the histograms of all ranks together.
  void start(const std::array<MagnitudeHistogram, kRateSites>& histograms, double bits);
  void start_for_error(const std::array<MagnitudeHistogram, kRateSites>& histograms, double error);
  [[nodiscard]] bool is_started() const { return is_started_ != 0; }
  // Steps have to be found anew.
  void stop() { is_started_ = 0; }
  // Where the values of an exchange are known before it, and are unlike the last ones: each rank
  // finds the step with which its own would take the bits of the plan, and own_step() is its part
  // of a sum over ranks, for follow(). The steps in force then change as the mean of the ranks' own
  // ones (of their logarithms) has changed since the last call.
  [[nodiscard]] static std::array<std::int64_t, 2> own_step(double step);  // 0: all values are 0
  void follow(const std::array<std::int64_t, 2>& sum);
  // After each other step; `bits` is what was planned for it, `next_bits` for the next one.
  // is_even: it had an even_order().
  void update(const RateTally& tally, double bits, double next_bits, bool is_even = false);
  // Gradients are this many times as large as the ones at the start of the run: steps follow at
  // once, and follow() begins anew.
  void set_scale(double scale);
  // For a step with so many planned bits.
  [[nodiscard]] EvenOrder even_order(double bits) const;
  // The caller begins its steps and adds what they have sent.
  [[nodiscard]] RunDebt& run_debt() { return run_debt_; }
  // With a wanted relative error instead: log step -= kMostGain * log(error / wanted).
  void update(const RateErrors& errors);
  [[nodiscard]] std::array<float, kRateSites> steps() const;
  void list_state(StateVisitor& visitor, const std::string& prefix);

 private:
  void start_with(std::array<double, kRateSites> steps);
  // B' of the site.
  [[nodiscard]] double wanted(double bits, std::size_t site) const;

  // Whole numbers, so that ranks whose logarithms differ in the last bit agree: the logarithm of
  // the step to base 2, and the debt, in units of kUnit.
  static constexpr double kUnit = 1.0 / 4096.0;
  std::array<std::int64_t, kRateSites> log_steps_ = {}, debts_ = {}, log_factors_ = {};
  RunDebt run_debt_;
  std::int64_t is_started_ = 0;
  // What follow() came to last; nothing before.
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();
  std::int64_t followed_ = kUnknown;
  // Exact, since a rounded logarithm would be off by up to 1e-4. Its owner saves it.
  double scale_ = 1.0;
};

}  // namespace dp
