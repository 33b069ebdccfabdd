#include "kernels/base/random.hpp"

#include <cmath>
#include <numbers>

namespace dp {

double normal(const CounterRng& rng, std::uint64_t position) {
  // 1 - u is in (0, 1], so the logarithm is finite.
  const double u = 1.0 - rng.uniform(2 * position), v = rng.uniform(2 * position + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace dp
