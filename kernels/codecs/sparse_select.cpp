// The radix select described in the header, and the collection of places. Except for the first
// histogram, every loop processes 32 values at a time. A vector comparison makes a mask of the
// values that reach a bound, and the loop visits only the values in the mask.
#include "kernels/codecs/sparse_select.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace dp::sparse {
namespace {

constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;
constexpr std::size_t kBins = 2048;
using Histogram = std::array<std::uint32_t, kBins>;

std::uint32_t magnitude_bits(float v) { return std::bit_cast<std::uint32_t>(v) & kMagnitude; }

// Returns a mask of 32 values. Bit i is 1 if the magnitude bits of v[i] are at least `least`.
// `least` must be at least 1.
constexpr std::size_t kStride = 32;
std::uint32_t mask_of_stride(const float* v, std::uint32_t least) {
  std::uint32_t mask = 0;
#if defined(__AVX2__)
  const __m256i below = _mm256_set1_epi32(static_cast<int>(least - 1));
  const __m256i magnitude = _mm256_set1_epi32(static_cast<int>(kMagnitude));
  for (unsigned i = 0; i < kStride; i += 8) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(v + i));
    const __m256i reaches = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), below);
    mask |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(reaches))) << i;
  }
#else
  for (unsigned i = 0; i < kStride; ++i) {
    mask |= static_cast<std::uint32_t>(magnitude_bits(v[i]) >= least) << i;
  }
#endif
  return mask;
}

// Calls use(i) for every i for which the magnitude bits of v[i] are at least `least`. `least` must
// be at least 1.
template <class Use>
void for_each_from(const float* v, std::size_t n, std::uint32_t least, Use use) {
  std::size_t begin = 0;
  for (; begin + kStride <= n; begin += kStride) {
    std::uint32_t mask = mask_of_stride(v + begin, least);
    for (; mask != 0; mask &= mask - 1) {
      use(begin + static_cast<std::size_t>(std::countr_zero(mask)));
    }
  }
  for (; begin < n; ++begin) {
    if (magnitude_bits(v[begin]) >= least) use(begin);
  }
}

// The bin that holds the k-th largest value, and how many values of the bin are among the k
// largest.
struct Found {
  std::size_t bin = 0;
  std::size_t wanted = 0;
};
template <class Counts>
Found find_from_above(const Counts& counts, std::size_t k) {
  std::size_t bin = counts.size() - 1;
  for (; counts[bin] < k; --bin) k -= counts[bin];
  return {bin, k};
}

// The range of magnitude bits [low, high] that holds the k-th largest value. `wanted` values of the
// range are among the k largest.
struct Range {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  std::size_t wanted = 0;
};

// A histogram of the upper 10 magnitude bits, in four tables: neighbours usually have similar
// magnitudes, and increments of the same counter would wait for each other.
constexpr unsigned kCoarseShift = 21;
class CoarseHistogram {
 public:
  template <unsigned kTable>
  void count(std::uint32_t bits) {
    ++counts_[kTable][bits >> kCoarseShift];
  }
  Found find(std::size_t k) {
    for (std::size_t bin = 0; bin < counts_[0].size(); ++bin) {
      counts_[0][bin] += counts_[1][bin] + counts_[2][bin] + counts_[3][bin];
    }
    return find_from_above(counts_[0], k);
  }

 private:
  std::array<std::array<std::uint32_t, (1u << 31 >> kCoarseShift)>, 4> counts_{};
};

// Finds the range from a histogram of all values.
Range range_of_values(const float* v, std::size_t n, std::size_t k) {
  CoarseHistogram histogram;
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    histogram.count<0>(magnitude_bits(v[i]));
    histogram.count<1>(magnitude_bits(v[i + 1]));
    histogram.count<2>(magnitude_bits(v[i + 2]));
    histogram.count<3>(magnitude_bits(v[i + 3]));
  }
  for (; i < n; ++i) histogram.count<0>(magnitude_bits(v[i]));
  const Found found = histogram.find(k);
  const auto low = static_cast<std::uint32_t>(found.bin << kCoarseShift);
  return {low, low + (1u << kCoarseShift) - 1, found.wanted};
}

// Finds the range from a histogram of the maxima of groups of 8 values. Vector instructions find
// the maxima, and the histogram counts an eighth as many numbers.
constexpr std::size_t kGroup = 8, kLanes = 8;
Range range_of_groups(const float* v, std::size_t n, std::size_t k) {
  CoarseHistogram histogram;
  std::array<std::uint32_t, kLanes> largest{};
  std::size_t begin = 0;
  for (; begin + kGroup * kLanes <= n; begin += kGroup * kLanes) {
    std::array<std::uint32_t, kLanes> maxima{};
    // Lane l holds the group begin + l, begin + l + 8, ...
    for (std::size_t row = 0; row < kGroup; ++row) {
      const std::size_t at = begin + row * kLanes;
#pragma omp simd
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::uint32_t bits = magnitude_bits(v[at + lane]);
        maxima[lane] = std::max(maxima[lane], bits);
      }
    }
#pragma omp simd
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      largest[lane] = std::max(largest[lane], maxima[lane]);
    }
    for (std::size_t lane = 0; lane < kLanes; lane += 4) {
      histogram.count<0>(maxima[lane]);
      histogram.count<1>(maxima[lane + 1]);
      histogram.count<2>(maxima[lane + 2]);
      histogram.count<3>(maxima[lane + 3]);
    }
  }
  for (; begin < n; ++begin) {
    const std::uint32_t bits = magnitude_bits(v[begin]);
    largest[0] = std::max(largest[0], bits);
    histogram.count<0>(bits);
  }
  const auto low = static_cast<std::uint32_t>(histogram.find(k).bin << kCoarseShift);
  return {low, *std::max_element(largest.begin(), largest.end()), k};
}

}  // namespace

Cut cut_of_largest(const float* v, std::size_t n, std::size_t k) {
  Range range = k <= n / (2 * kGroup) ? range_of_groups(v, n, k) : range_of_values(v, n, k);
  // Zeros are never sent, so a range that begins at 0 is made to begin at 1. It may then hold fewer
  // values than wanted.
  while (true) {
    range.low = std::max(range.low, 1u);
    if (range.high < range.low) return {};
    const std::uint32_t width = range.high - range.low;
    unsigned shift = 0;
    while (width >> shift >= kBins) ++shift;
    Histogram counts{};
    std::size_t counted = 0;
    for_each_from(v, n, range.low, [&](std::size_t i) {
      const std::uint32_t above = magnitude_bits(v[i]) - range.low;
      if (above > width) return;
      ++counts[above >> shift];
      ++counted;
    });
    if (counted <= range.wanted) return {.least = range.low};
    const Found found = find_from_above(counts, range.wanted);
    const std::uint32_t low = range.low + static_cast<std::uint32_t>(found.bin << shift);
    if (counts[found.bin] == found.wanted) return {.least = low};
    if (shift == 0) return {.least = low, .ties = found.wanted};
    range = {low, std::min(range.high, low + (1u << shift) - 1), found.wanted};
  }
}

std::size_t collect(const float* v, std::size_t n, Cut cut, std::byte* places) {
  std::size_t count = 0;
  const auto take = [&](std::size_t i) {
    const std::uint32_t bits = magnitude_bits(v[i]);
    if (bits < cut.least) return;
    // After the last tie that may be sent, raise the cut by one, so that no further tie is sent.
    if (bits == cut.least && --cut.ties == 0) ++cut.least;
    const auto place = static_cast<std::uint32_t>(i);
    std::memcpy(places + count * sizeof place, &place, sizeof place);
    ++count;
  };
  std::size_t begin = 0;
  for (; begin + kStride <= n; begin += kStride) {
    std::uint32_t mask = mask_of_stride(v + begin, cut.least);
    for (; mask != 0; mask &= mask - 1) {
      take(begin + static_cast<std::size_t>(std::countr_zero(mask)));
    }
  }
  for (; begin < n; ++begin) take(begin);
  return count;
}

}  // namespace dp::sparse
