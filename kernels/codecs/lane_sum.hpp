// Sums over a block in one fixed order that suits vector units: 16 lanes, then a tree.
#pragma once

#include <cstddef>

namespace dp {

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

}  // namespace dp
