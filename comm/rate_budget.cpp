#include "comm/rate_budget.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/base/error.hpp"

namespace dp {

double two_leg_wire_factor(std::size_t ranks) {
  if (ranks < 2) return 0.0;
  return 2.0 * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

RateBudget hidden_rate(const RateBudgetSetup& setup) {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  RateBudget budget{.bits_per_value = kNoLimit};
  if (setup.buckets.empty() || setup.wire_factor <= 0.0) return budget;
  DP_ASSERT(setup.goodput_bytes_per_s > 0.0, "a goodput of {}", setup.goodput_bytes_per_s);
  std::vector<double> ready_s;
  for (const BudgetBucket& bucket : setup.buckets) {
    ready_s.push_back(ready_s.empty() ? bucket.ready_s : std::max(ready_s.back(), bucket.ready_s));
  }
  const double last_byte_s =
      setup.backward_end_s + setup.slack_s - static_cast<double>(setup.hops) * setup.latency_s;
  double elements = 0.0, fixed_bytes = 0.0;  // of the buckets from i on
  for (std::size_t i = setup.buckets.size(); i-- > 0;) {
    elements += static_cast<double>(setup.buckets[i].elements);
    fixed_bytes += setup.buckets[i].fixed_bytes;
    if (elements == 0.0 && fixed_bytes == 0.0) continue;
    const double payload_bytes =
        (last_byte_s - ready_s[i]) * setup.goodput_bytes_per_s / setup.wire_factor - fixed_bytes;
    if (payload_bytes < 0.0) budget.fits = false;
    if (elements == 0.0 && payload_bytes >= 0.0) continue;
    const double bits = payload_bytes < 0.0 ? 0.0 : 8.0 * payload_bytes / elements;
    if (budget.binding && bits >= budget.bits_per_value) continue;
    budget.bits_per_value = bits;
    budget.binding = i;
  }
  return budget;
}

}  // namespace dp
