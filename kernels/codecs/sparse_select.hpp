// Which values of a segment a sparse codec sends: those from a *cut* of the magnitude on.
//
// Magnitudes are compared as bit patterns without the sign, which order as the numbers do and have
// no rounding. The functions allocate nothing and fail nowhere; the values must be finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace dp::sparse {

// Values with larger magnitude bits than `least` are sent, and of those that equal it the first
// `ties`.
struct Cut {
  static constexpr std::size_t kAllTies = std::numeric_limits<std::size_t>::max();
  std::uint32_t least = 1;
  std::size_t ties = kAllTies;
};

// The cut that leaves exactly the k largest magnitudes, ties to the lower index; 1 <= k <= n.
//
// A radix select that reads the segment about four times and sorts nothing: (1) the maxima of
// groups of 8 values give a bound that at least k values reach (each of the k largest maxima is
// one); (2) a histogram over the values from that bound up to the largest narrows the range that
// holds the k-th by a factor of 2048 at a time, until it holds as many values as are still wanted
// or is one bit pattern. Where k is more than n/16 the first histogram counts every value.
[[nodiscard]] Cut cut_of_largest(const float* v, std::size_t n, std::size_t k);

// Writes the places of the values that the cut sends, ascending, as u32 at `places` (any
// alignment). Returns how many.
std::size_t collect(const float* v, std::size_t n, Cut cut, std::byte* places);

}  // namespace dp::sparse
