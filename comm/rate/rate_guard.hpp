// What encodes of a codec with a rate have dropped: how a rank measures it, how ranks tell each
// other, and the guard that sends more bits where too much waits in residuals.
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

// Where gradients are rounded (rate_control.hpp).
enum class RateSite : std::uint8_t { partial = 0, total = 1 };
inline constexpr std::size_t kRateSites = 2;

// Sums of squares over what a rank has encoded.
struct EncodedSquares {
  double gradient = 0.0;  // the values without the residual
  double values = 0.0;    // with it: what was encoded
  double dropped = 0.0;   // the residual afterwards

  EncodedSquares& operator+=(const EncodedSquares& more) {
    gradient += more.gradient;
    values += more.values;
    dropped += more.dropped;
    return *this;
  }
  // The norm of the residual over that of the gradient, and over that of the values; 0 where
  // nothing was measured.
  [[nodiscard]] double growth() const { return ratio(dropped, gradient); }
  [[nodiscard]] double relative_error() const { return ratio(dropped, values); }

 private:
  static double ratio(double a, double b) { return b > 0.0 ? std::sqrt(a / b) : 0.0; }
};
using SiteSquares = std::array<EncodedSquares, kRateSites>;

// The growth over both sites together.
[[nodiscard]] inline double growth_of(SiteSquares squares) {
  return (squares[0] += squares[1]).growth();
}

// The relative errors of a rank's encodes over the wanted one, as a message tells them: a byte for
// each site, from 1/4 to 4 in steps of 1 %. Of several, the largest count.
class RateErrors {
 public:
  static constexpr std::uint16_t kNone = 0xffff;

  RateErrors() = default;
  // 0: nothing was measured.
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

// Sends more bits while the residual of some rank is larger than so many times the gradient, until
// it no longer is; then, slowly, fewer again. The same on all ranks.
class ResidualGuard {
 public:
  // Squares are measured in every so many steps; all ranks know the result one step later.
  static constexpr std::uint64_t kEvery = 4;
  static constexpr bool measures_in(std::uint64_t step) { return step % kEvery == 0; }
  static constexpr bool is_told_in(std::uint64_t step) { return step % kEvery == 1; }

  // In each step in which it is told; is_beyond: of some rank.
  void update(bool is_beyond);
  [[nodiscard]] double factor() const { return std::exp2(static_cast<double>(level_) * kUnit); }
  void list_state(StateVisitor& visitor, const std::string& prefix) {
    visitor.value(prefix + "/guard", level_);
  }

 private:
  // 9 % up and 0.5 % down; 16 times the bits at most.
  static constexpr double kUnit = 1.0 / 128.0;
  static constexpr std::int64_t kUp = 16, kDown = 1, kMost = 4 * 128;
  std::int64_t level_ = 0;
};

}  // namespace dp
