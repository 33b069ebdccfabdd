// Finds the scale s for which the levels -s, 0 and s have the smallest squared error on a block.
// `q2` and `ternary` send this scale.
//
// Every value takes the nearest level, so values above s / 2 in magnitude are sent. If the k
// largest magnitudes are sent and S is their sum, the best s is their mean and the squared error is
// sum v^2 - S^2 / k. The best s therefore has the largest S^2 / k. The search sorts nothing, and
// its sums are exact or in a fixed order:
//   1. magnitudes, as multiples of absmax / 255, are counted in 256 bins;
//   2. the best of the 255 thresholds between bins is taken; here every value counts as the lower
//      end of its bin, so S is a sum of whole numbers;
//   3. kRefinements times (Lloyd 1957), s becomes the mean of the values that are sent, and then
//      the values above s / 2 become the values that are sent. Neither change increases the error.
// The squared error is within 1 % of the best one for normal, Laplacian and heavy-tailed values. A
// test compares the squared error with the best one, found by trying all k.
//
// Contraction: let q = floor(255 |v| / absmax) >= 0 for n values, and F the largest S^2 / k that
// step 2 finds among the q. If S_k is the sum of the k largest q, the k-th largest q is at most S_k
// / k <= sqrt(F / k), so sum q^2 <= F H(n) with H(n) = 1 + 1/2 + ... + 1/n.
//
// In units of absmax / 255, the values that are sent are no smaller than their q, so the squared
// error is at most sum v^2 - F. In addition, sum v^2 <= sum (q + 1)^2 <= R sum q^2. R is largest if
// one value is the maximum, M = 254 or more, and all other values are just below some j + 1:
//     R = max over j of ((n-1) (j+1)^2 + M^2) / ((n-1) j^2 + M^2)
// Hence c^2 = 1 - 1 / (H(n) R) with n = block: c is 0.95 at 2048, and 0.97 at 16384.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/codecs/codec_spec.hpp"
#include "kernels/codecs/lane_sum.hpp"

namespace dp::three_levels {

inline constexpr int kBins = 256;
inline constexpr int kRefinements = 2;

// The scale for the m <= kMaxBlock values partial + residual (`residual` may be null). `absmax` is
// their largest magnitude, finite and at least 2^-100.
inline float best_scale(const float* partial, const float* residual, std::size_t m, float absmax) {
  float y[kMaxBlock];
  std::uint8_t bin[kMaxBlock];
  const float inverse = (kBins - 1) / absmax;
  if (residual != nullptr) {
#pragma omp simd
    for (std::size_t i = 0; i < m; ++i) y[i] = std::fabs(partial[i] + residual[i]) * inverse;
  } else {
#pragma omp simd
    for (std::size_t i = 0; i < m; ++i) y[i] = std::fabs(partial[i]) * inverse;
  }
#pragma omp simd
  for (std::size_t i = 0; i < m; ++i) bin[i] = static_cast<std::uint8_t>(static_cast<int>(y[i]));

  // Several tables, because consecutive increments of the same bin would wait for each other.
  constexpr std::size_t kTables = 4;
  std::uint16_t counts[kTables][kBins] = {};
  std::size_t i = 0;
  for (; i + kTables <= m; i += kTables) {
    for (std::size_t t = 0; t < kTables; ++t) ++counts[t][bin[i + t]];
  }
  for (; i < m; ++i) ++counts[0][bin[i]];

  std::uint64_t sent = 0, sum = 0, best_sent = 1, best_sum = 0;
  int threshold = 1;
  for (int b = kBins - 1; b > 0; --b) {
    const std::uint64_t count =
        std::uint64_t{counts[0][b]} + counts[1][b] + counts[2][b] + counts[3][b];
    sent += count;
    sum += count * static_cast<std::uint64_t>(b);
    // Tests, without a division, whether sum^2 / sent > best_sum^2 / best_sent. The products are at
    // most (2^22)^2 * 2^14, so 64 bits hold them.
    if (sum * sum * best_sent > best_sum * best_sum * sent) {
      best_sum = sum;
      best_sent = sent;
      threshold = b;
    }
  }

  // From here on s is in units of absmax / 255, and values of at least `from` are sent.
  auto from = static_cast<float>(threshold);
  float s = 0.0f;
  for (int step = 0; step <= kRefinements; ++step) {
    const float total =
        lane_sum<float>(m, [&](std::size_t k) { return y[k] >= from ? y[k] : 0.0f; });
    const auto count =
        lane_sum<std::int32_t>(m, [&](std::size_t k) { return y[k] >= from ? 1 : 0; });
    s = total / static_cast<float>(count);
    from = 0.5f * s;
  }
  return s / (kBins - 1) * absmax;
}

// The contraction c of a whole block.
inline double contraction(std::size_t block) {
  const double others = static_cast<double>(block) - 1.0, top = 254.0 * 254.0;
  double harmonic = 0.0, ratio = 1.0;
  for (std::size_t k = 1; k <= block; ++k) harmonic += 1.0 / static_cast<double>(k);
  for (double k = 0.0; k < kBins; k += 1.0) {
    ratio = std::max(ratio, (others * (k + 1.0) * (k + 1.0) + top) / (others * k * k + top));
  }
  return std::sqrt(1.0 - 1.0 / (harmonic * ratio)) + 0x1p-20;
}

}  // namespace dp::three_levels
