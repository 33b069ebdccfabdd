// The errors of a codec with a rate: how a rank measures them, their code in messages, and the
// guard that raises the bits when residuals become too large.
//
// Pure arithmetic. Nothing here communicates or fails.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/state.hpp"

namespace dp {

// The two places where gradients are rounded (rate_control.hpp).
enum class RateSite : std::uint8_t { partial = 0, total = 1 };
inline constexpr std::size_t kRateSites = 2;

// Sums of squares over the values that a rank has encoded.
struct EncodedSquares {
  double gradient = 0.0;  // the values without the residual
  double values = 0.0;    // gradient + residual: the encoded values
  double dropped = 0.0;   // the residual afterwards

  EncodedSquares& operator+=(const EncodedSquares& more) {
    gradient += more.gradient;
    values += more.values;
    dropped += more.dropped;
    return *this;
  }
  // norm(residual) / norm(gradient), and norm(residual) / norm(values); 0 if nothing was measured.
  [[nodiscard]] double growth() const { return ratio(dropped, gradient); }
  [[nodiscard]] double relative_error() const { return ratio(dropped, values); }

 private:
  static double ratio(double a, double b) { return b > 0.0 ? std::sqrt(a / b) : 0.0; }
};
using SiteSquares = std::array<EncodedSquares, kRateSites>;

// The growth, norm(residual) / norm(gradient), with the squares of both sites added up.
[[nodiscard]] inline double growth_of(SiteSquares squares) {
  return (squares[0] += squares[1]).growth();
}

// A rank's relative errors divided by the wanted error, coded for a message: one byte for each
// site. A byte stands for a quotient between 1/4 and 4, in increments of 1 %. The largest error of
// all ranks counts.
class RateErrors {
 public:
  static constexpr std::uint16_t kNone = 0xffff;

  RateErrors() = default;
  // 0 means that nothing was measured.
  static RateErrors of(const std::array<double, kRateSites>& over_wanted);
  static RateErrors of_code(std::uint16_t code) { return RateErrors(code); }

  [[nodiscard]] std::uint16_t code() const { return code_; }
  [[nodiscard]] bool is_given(RateSite site) const { return byte(site) != 0xff; }
  [[nodiscard]] double over_wanted(RateSite site) const;
  void meet(RateErrors other);

 private:
  explicit RateErrors(std::uint16_t code) : code_(code) {}
  [[nodiscard]] unsigned shift(RateSite site) const { return site == RateSite::total ? 8 : 0; }
  [[nodiscard]] unsigned byte(RateSite site) const { return (code_ >> shift(site)) & 0xffu; }

  std::uint16_t code_ = kNone;  // larger errors have smaller bytes
};

// Raises the bits while some rank's residual exceeds the limit (growth= times the gradient), and
// otherwise slowly lowers them to the planned bits. The same on all ranks.
class ResidualGuard {
 public:
  // Squares are measured in every kEvery-th step; all ranks know the result one step later.
  static constexpr std::uint64_t kEvery = 4;
  static constexpr bool measures_in(std::uint64_t step) { return step % kEvery == 0; }
  static constexpr bool is_told_in(std::uint64_t step) { return step % kEvery == 1; }

  // Call it in each step with is_told_in(). is_beyond: some rank's residual exceeds the limit.
  void update(bool is_beyond);
  [[nodiscard]] double factor() const { return std::exp2(static_cast<double>(level_) * kUnit); }
  void list_state(StateVisitor& visitor, const std::string& prefix) {
    visitor.value(prefix + "/guard", level_);
  }

 private:
  // One update raises the bits by 9 % or lowers them by 0.5 %, up to 16 times the planned bits.
  static constexpr double kUnit = 1.0 / 128.0;
  static constexpr std::int64_t kUp = 16, kDown = 1, kMost = 4 * 128;
  std::int64_t level_ = 0;
};

}  // namespace dp
