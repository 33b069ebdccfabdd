// Sums over a block in one fixed order that suits vector units: 16 lanes, then a tree.
#pragma once

#include <algorithm>
#include <cstddef>

namespace dp {

// Long sums are divided into tiles of this many terms, each added by lane_sum().
inline constexpr std::size_t kSumTile = 2048;

// The sum of term(i) for i < m. Lane k adds the terms k, k + 16, k + 32, ... in that order. Then
// the lanes are added: first lane k + 8 to lane k, then lane k + 4, k + 2 and k + 1. T: float,
// double or an integer type.
template <class T, class Term>
T lane_sum(std::size_t m, Term term) {
  constexpr std::size_t kLanes = 16;
  T lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= m; i += kLanes) {
#pragma omp simd
    for (std::size_t k = 0; k < kLanes; ++k) lanes[k] += term(i + k);
  }
  for (std::size_t k = 0; i + k < m; ++k) lanes[k] += term(i + k);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

// The sum of term(i) for i < n: lane_sum<T>() of each tile, added in order.
template <class T, class Term>
double tiled_sum(std::size_t n, Term term) {
  double sum = 0.0;
  for (std::size_t begin = 0; begin < n; begin += kSumTile) {
    sum += static_cast<double>(
        lane_sum<T>(std::min(kSumTile, n - begin), [&](std::size_t i) { return term(begin + i); }));
  }
  return sum;
}

}  // namespace dp
