#include "comm/topologies/velocity.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.hpp"

namespace dp {

LocalMomentum::LocalMomentum(std::size_t elements, const SegmentMemory& memory, StatePlace place)
    : memory_(memory), place_(place), values_(memory.allocate(elements)), size_(elements) {}

void LocalMomentum::list_state(StateVisitor& visitor) {
  visitor.values("exchange/velocity", velocity(), StateShare::own, place_, StateMerge::sum,
                 StateGrain::value);
}

float* LocalMomentum::at(std::size_t begin, std::size_t n) const {
  DP_ASSERT(begin + n <= size_, "[{}, {}) of {}", begin, begin + n, size_);
  return values_.get() + begin;
}

void LocalMomentum::mask(std::size_t begin, std::span<const float> residual) {
  memory_.clear(SegmentMemory::Where::zero, residual.data(), at(begin, residual.size()),
                residual.size());
}

void LocalMomentum::mask_delivered(std::size_t begin, std::span<const float> delivered) {
  memory_.clear(SegmentMemory::Where::not_zero, delivered.data(), at(begin, delivered.size()),
                delivered.size());
}

void LocalVelocity::prepare(std::size_t begin, std::span<float> gradient) {
  const std::size_t n = gradient.size();
  float scale = 1.0f;
  if (options_.clip > 0.0) {
    const double squares = memory().squares_of_sum(gradient.data(), nullptr, n);
    if (!std::isfinite(squares)) return;
    const double most = options_.clip / std::sqrt(static_cast<double>(options_.ranks));
    const double norm = std::sqrt(squares);
    if (norm > most) scale = static_cast<float>(most / norm);
  }
  memory().add_momentum({.momentum = options_.momentum,
                         .scale = scale,
                         .given = options_.has_nesterov ? options_.momentum : 1.0f,
                         .direct = options_.has_nesterov ? scale : 0.0f},
                        gradient.data(), at(begin, n), n);
}

void LocalVelocity::scale(float factor) {
  options_.clip *= static_cast<double>(factor);
  memory().scale(factor, velocity().data(), velocity().size());
}

double warmup_ratio(double ratio, std::size_t epoch) {
  // The ratio of a warm-up epoch is 2^(-2 (epoch + 1)). The exponent ends at -1000, since 2^-1000
  // is already below every allowed ratio.
  const int exponent = epoch < 500 ? -2 * (static_cast<int>(epoch) + 1) : -1000;
  return std::max(ratio, std::ldexp(1.0, exponent));
}

}  // namespace dp
