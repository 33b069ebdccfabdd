#include "comm/topologies/velocity.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/error.hpp"
#include "kernels/codecs/segment_memory.hpp"

namespace dp {
namespace {

constexpr std::size_t kMaskPiece = 32;

}  // namespace

void LocalVelocity::prepare(std::size_t begin, std::span<float> gradient) {
  const std::size_t n = gradient.size();
  DP_ASSERT(begin + n <= velocity_.size(), "[{}, {}) of {}", begin, begin + n, velocity_.size());
  if (options_.clip == 0.0) {
    for (std::size_t i = 0; i < n; i += kPiece) {
      const std::span<float> piece = gradient.subspan(i, std::min(kPiece, n - i));
      if (host_memory().is_finite(piece.data(), piece.size())) accelerate(begin + i, piece, 1.0f);
    }
    return;
  }
  const double squares = host_memory().squares_of_sum(gradient.data(), nullptr, n);
  if (!std::isfinite(squares)) return;
  const double most = options_.clip / std::sqrt(static_cast<double>(options_.ranks));
  const double norm = std::sqrt(squares);
  accelerate(begin, gradient, norm > most ? static_cast<float>(most / norm) : 1.0f);
}

void LocalVelocity::accelerate(std::size_t begin, std::span<float> gradient, float scale) {
  const std::size_t n = gradient.size();
  const float momentum = options_.momentum;
  const float given = options_.has_nesterov ? momentum : 1.0f;  // factor of the velocity
  const float direct = options_.has_nesterov ? scale : 0.0f;    // factor of the gradient
  float* g = gradient.data();
  float* u = velocity_.data() + begin;
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) {
    u[i] = momentum * u[i] + scale * g[i];
    g[i] = given * u[i] + direct * g[i];
  }
}

void LocalMomentum::mask(std::size_t begin, std::span<const float> residual) {
  const std::size_t n = residual.size();
  DP_ASSERT(begin + n <= velocity_.size(), "[{}, {}) of {}", begin, begin + n, velocity_.size());
  const float* z = residual.data();
  float* u = velocity_.data() + begin;
#pragma omp simd
  for (std::size_t i = 0; i < n; ++i) u[i] = z[i] == 0.0f ? 0.0f : u[i];
}

void LocalMomentum::mask_delivered(std::size_t begin, std::span<const float> delivered) {
  const std::size_t n = delivered.size();
  DP_ASSERT(begin + n <= velocity_.size(), "[{}, {}) of {}", begin, begin + n, velocity_.size());
  const float* d = delivered.data();
  float* u = velocity_.data() + begin;
  // At few bits most pieces are all zeros; their velocities are neither read nor written.
  std::size_t i = 0;
  for (; i + kMaskPiece <= n; i += kMaskPiece) {
    std::uint32_t any = 0;
#pragma omp simd reduction(| : any)
    for (std::size_t k = i; k < i + kMaskPiece; ++k) any |= std::bit_cast<std::uint32_t>(d[k]) << 1;
    if (any == 0) continue;
#pragma omp simd
    for (std::size_t k = i; k < i + kMaskPiece; ++k) u[k] = d[k] != 0.0f ? 0.0f : u[k];
  }
  for (; i < n; ++i) u[i] = d[i] != 0.0f ? 0.0f : u[i];
}

void LocalVelocity::scale(float factor) {
  options_.clip *= static_cast<double>(factor);
  for (float& u : velocity_) u *= factor;
}

double warmup_ratio(double ratio, std::size_t epoch) {
  // The ratio of a warm-up epoch is 2^(-2 (epoch + 1)). The exponent ends at -1000, since 2^-1000
  // is already below every allowed ratio.
  const int exponent = epoch < 500 ? -2 * (static_cast<int>(epoch) + 1) : -1000;
  return std::max(ratio, std::ldexp(1.0, exponent));
}

}  // namespace dp
