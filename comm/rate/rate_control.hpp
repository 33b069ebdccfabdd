// Rate control chooses the quantiser's step size before every training step: one step size for all
// tensors and ranks.
//
// Gradients pass two *sites* where they are rounded: a rank's own values on their way to the rank
// that adds them (partial sums), and the sum on its way to all (totals). Each site has a step size
// of its own, since sums are larger. At a given number of bits, the squared error is least if all
// tensors have the same step size ("equal slope").
//
// With rate control, every message carries a *rate note* behind its header. It holds the bytes that
// the segment's partial sums took so far. It also holds either the bits a value that the sender's
// link can carry (RateWish) or the errors that the sender measured (RateErrors). An alarm in the
// note means that a residual has grown too much. The note of a total covers all ranks, and every
// rank gets every total. Hence all ranks know the same notes after a step. From these they compute
// the same step sizes for the next step, without another message. Nothing here communicates, reads
// a clock, or fails.
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
#include "kernels/codecs/segment_memory.hpp"

namespace dp {

struct CodecSpec;

// Whether the codec has a rate: bits= or error= is given, and all ranks agree on the step sizes
// that follow from it.
[[nodiscard]] bool has_rate(const CodecSpec& spec);

// A rank's wish: the bits a value that its link can carry. In a message a wish is a code, a whole
// number that grows with the logarithm of the bits. The exchange follows the smallest wish of all
// ranks.
class RateWish {
 public:
  static constexpr std::uint16_t kNone = 0xffff;

  RateWish() = default;
  // Codes begin at 2^-12 bits a value, and each next one is larger by a factor of 2^(1/2048).
  // Returns no wish if `bits` is beyond the last code, about 2^20, or not a number.
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
  // The meaning of `code`, which is the same on all ranks and in all steps.
  enum class Kind : std::uint8_t { wish, errors };

  Kind kind = Kind::wish;
  std::uint16_t code = kNone;  // a RateWish (auto) or RateErrors (error=)
  bool has_alarm = false;      // a residual has grown too much (ResidualGuard)

  // Combines this word with `other`, which is treated as having the same kind.
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

// The bytes that all ranks together have sent in one training step. The same on all ranks, except
// own_squares.
struct RateTally {
  struct Site {
    std::uint64_t bytes = 0;   // of payloads; a forwarded payload counts once
    std::uint64_t values = 0;  // the number of values in them

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
  static constexpr std::size_t kBins = SegmentMemory::kMagnitudes;

  MagnitudeHistogram() : counts_(kBins) {}
  // Adds values + residual (may be null) in `memory`. Values that are not finite are left out.
  void add(std::span<const float> values, const float* residual,
           const SegmentMemory& memory = host_memory());
  [[nodiscard]] std::span<std::int64_t> counts() { return counts_; }
  // The entropy, in bits a value, of the values rounded to whole multiples of `step`.
  [[nodiscard]] double bits(double step) const;
  // The least step size with which the values take at most `bits` bits a value. It is found to
  // within 1 %, and is 0 if all values are 0.
  [[nodiscard]] double step_for(double bits) const;
  // norm(rounding error) / norm(values) for rounding to whole multiples of `step`; 0 if all values
  // are 0.
  [[nodiscard]] double relative_error(double step) const;
  // The largest step size whose relative error is at most this. It is found to within 1 %, and is 0
  // if all values are 0.
  [[nodiscard]] double step_for_error(double relative_error) const;

 private:
  // Empty if all values are 0.
  [[nodiscard]] std::optional<double> largest() const;

  std::vector<std::int64_t> counts_;
};

// The plan for segments that choose their own step sizes (segment_rates.hpp), with an entry for
// each site.
struct EvenOrder {
  // Bits a value, averaged over all segments. 0: segments use the common step size.
  std::array<double, kRateSites> bits = {};
  std::array<double, kRateSites> share_factors = {1.0, 1.0};  // multiply the segments' shares
};

// The quantiser's step sizes in force. The exchange's thread reads the order during a training
// step.
struct RateOrder {
  std::array<float, kRateSites> steps = {};  // 0: the codec chooses one for each segment
  unsigned dense_bits = 0;                   // EncodeContext::dense_bits
  EvenOrder even = {};
  RateWord word = {};             // of this rank
  bool measures_squares = false;  // fill RateTally::own_squares
  bool masks_velocities = true;   // for buckets with Bucket::Velocity::masked
  // If not null, encoders count the values in these histograms, by site.
  std::array<MagnitudeHistogram, kRateSites>* histograms = nullptr;

  [[nodiscard]] float step(RateSite site) const { return steps[static_cast<std::size_t>(site)]; }
};

// The planned and the sent bits of a training step. The same on all ranks, except for values that
// are marked as this rank's own. NaN if no codec has a rate.
struct RateReport {
  double planned_bits = kNothing;                                    // a value
  std::array<double, kRateSites> bits = {kNothing, kNothing};        // as sent
  std::array<double, kRateSites> next_steps = {kNothing, kNothing};  // next step sizes
  // Only with `auto`. wished_bits, the least of all ranks' hidden_bits, sets the next plan. The
  // other three members describe this rank alone: the bandwidth of its link, the bits a value that
  // its computation would hide, and the first bucket of those that limit the bits.
  double wished_bits = kNothing;
  double link_bytes_per_s = kNothing, hidden_bits = kNothing;
  std::optional<std::size_t> binding_bucket = std::nullopt;
  // The last measurements of this rank: norm(residual) / norm(encoded values), norm(residual) /
  // norm(gradient) (ResidualGuard), and the bucket with the largest norm(residual) /
  // norm(gradient).
  double relative_error = kNothing, residual_growth = kNothing;
  double most_growth = 0.0;  // the growth at which the guard acts; 0: never
  std::optional<std::size_t> grown_bucket = std::nullopt;
  double guard_factor = kNothing;  // by which the guard raises the planned bits

  static constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
  [[nodiscard]] double mean_bits() const { return (bits[0] + bits[1]) / 2; }
  // For logs.
  [[nodiscard]] double binding_number() const {
    return binding_bucket ? static_cast<double>(*binding_bucket) : kNothing;
  }
};

// Chooses the quantiser's step sizes so that the planned bits a value are sent in the mean.
//
// A histogram of the values in the first training step gives the quantiser's step sizes for the
// second training step. From then on, for each site, with b the bits a value that a training step
// has taken and B the planned bits,
//
//     log step size += clamp(gain * (b / B' - 1) - log(next B / B) / 2, +-kMostChange)
//     gain = min(kMostGain, B / 2)
//     B' = B * (1 - clamp(debt / kHorizon, +-kMostDebt))
//
// Here `debt` is the sum of b / B - 1 so far, limited to the range in which it has an effect. It
// makes the mean over the last training steps right, too. In a run of known length, B' comes from
// RunDebt instead, which makes the mean of the whole run right. The second term anticipates a
// change of the plan: in the long run bits fall about as the inverse square of the step size. The
// gain is smaller at few bits, because residuals respond later there: a larger step size lowers the
// bits at first by far more than in the long run, when residuals have grown. The error term is b /
// B - 1 and not log(b / B), since the mean of b is controlled: at few bits the logarithm leads to a
// limit cycle with 1.6 times the planned bits.
//
// With an even_order() segments choose their own step sizes so that they take B' bits in the mean,
// and the common step size is the reference for their shares. If a training step takes more or
// fewer bits than B', the common step size is wrong. The segments' shares have already absorbed an
// eighth of this error (SegmentRates::kWeight). The share factors undo this change of the shares,
// and
//
//     log step size += clamp(b / B' - 1 - log(next B / B) / 2, +-kMostEvenChange)
//
// The common step size responds at once, but the bits of a single training step change it only a
// little. If it responded more slowly, rose more after a training step with many bits, or repaid
// the debt faster, training steps with many bits would alternate with nearly empty ones. Values
// would then be delivered late, and runs with few bits would become unstable (ResNet-20, 0.03 bits,
// masked velocities: a loss of 1.53 instead of 1.34).
class RateController {
 public:
  static constexpr double kMostGain = 0.15, kMostChange = 0.14;  // 0.14: 15 % a training step
  static constexpr double kHorizon = 30.0, kMostDebt = 0.25;
  static constexpr double kMostEvenChange = 0.35, kMostFactor = 8.0;

  // Call it after the first step, with the summed histograms of all ranks.
  void start(const std::array<MagnitudeHistogram, kRateSites>& histograms, double bits);
  void start_for_error(const std::array<MagnitudeHistogram, kRateSites>& histograms, double error);
  [[nodiscard]] bool is_started() const { return is_started_ != 0; }
  // Discards the step sizes, so start() must find new ones.
  void stop() { is_started_ = 0; }
  // For rounds (RatedRound): the values are known before the exchange begins, and they may differ
  // much from those of the last exchange. Each rank finds the step size with which its own values
  // would take the planned bits; own_step() codes this step size as the rank's part of a sum over
  // ranks. follow() takes the sum, which gives the geometric mean of the ranks' own step sizes. It
  // multiplies the step sizes in force by the ratio of this mean to the mean at the last call.
  [[nodiscard]] static std::array<std::int64_t, 2> own_step(double step);  // 0: all values are 0
  void follow(const std::array<std::int64_t, 2>& sum);
  // Call it after each later training step. `bits` was planned for that step, `next_bits` is
  // planned for the next one. is_even: the step had an even_order().
  void update(const RateTally& tally, double bits, double next_bits, bool is_even = false);
  // From now on gradients are `scale` times as large as at the start of the run. The step sizes
  // change by the same factor at once, and follow() forgets the mean of its last call.
  void set_scale(double scale);
  // Multiplies the step sizes by `ratio`, because the values of the next exchange are expected to
  // be that many times as large as those of the last one.
  void scale_steps(double ratio);
  // The order for a training step with this many planned bits.
  [[nodiscard]] EvenOrder even_order(double bits) const;
  // The debt in a run of known length. The caller must call RunDebt's begin_step() and add().
  [[nodiscard]] RunDebt& run_debt() { return run_debt_; }
  // Replaces the other update() if a relative error is wanted: log step size -= kMostGain *
  // log(error / wanted).
  void update(const RateErrors& errors);
  [[nodiscard]] std::array<float, kRateSites> steps() const;
  void list_state(StateVisitor& visitor, const std::string& prefix);

 private:
  void start_with(std::array<double, kRateSites> steps);
  // B' of the site.
  [[nodiscard]] double wanted(double bits, std::size_t site) const;

  // Debts, and base-2 logarithms of step sizes and share factors, as whole multiples of kUnit, so
  // that ranks agree even if their logarithms differ in the last bit.
  static constexpr double kUnit = 1.0 / 4096.0;
  std::array<std::int64_t, kRateSites> log_steps_ = {}, debts_ = {}, log_factors_ = {};
  RunDebt run_debt_;
  std::int64_t is_started_ = 0;
  // The logarithm of the geometric mean in the last follow(); kUnknown before the first call.
  static constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();
  std::int64_t followed_ = kUnknown;
  // The argument of set_scale(), kept exactly, since a logarithm rounded to kUnit would be off by
  // up to 1e-4. Not part of list_state(): the caller of set_scale() saves it.
  double scale_ = 1.0;
};

}  // namespace dp
