// Selects the values of a segment that a sparse codec sends: those whose magnitude reaches a *cut*.
//
// Magnitudes are compared as bit patterns without the sign bit. These patterns have the same order
// as the magnitudes. The functions allocate nothing and do not fail; the values must be finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace dp::sparse {

// Sends all values with larger magnitude bits than `least`, and the first `ties` of the values
// whose magnitude bits equal `least`.
struct Cut {
  static constexpr std::size_t kAllTies = std::numeric_limits<std::size_t>::max();
  std::uint32_t least = 1;
  std::size_t ties = kAllTies;
};

// The cut that sends exactly the k largest magnitudes, ties to the lower index; 1 <= k <= n.
//
// This is a radix select, which reads the segment about four times and sorts nothing:
//   1. The k-th largest maximum of groups of 8 values is a lower bound of the cut: every maximum is
//      a value, so at least k values reach this bound. If k is more than n/16, a histogram of all
//      values is used instead of the maxima.
//   2. A histogram of the values between the bound and the largest value narrows the range of the
//      k-th value by a factor of 2048. This is repeated until all values in the range must be sent
//      or the range is one bit pattern.
[[nodiscard]] Cut cut_of_largest(const float* v, std::size_t n, std::size_t k);

// Writes the places of the values that the cut sends to `places`, as u32 in ascending order.
// `places` may have any alignment. Returns the number of values.
std::size_t collect(const float* v, std::size_t n, Cut cut, std::byte* places);

}  // namespace dp::sparse
