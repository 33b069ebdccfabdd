#include "comm/rate/rate_budget.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/base/error.hpp"

namespace dp {

RateBudget hidden_rate(const RateBudgetSetup& setup) {
  constexpr double kNoLimit = std::numeric_limits<double>::infinity();
  RateBudget budget{.bits_per_value = kNoLimit};
  if (setup.buckets.empty() || setup.wire_factor <= 0.0) return budget;
  DP_ASSERT(setup.goodput_bytes_per_s > 0.0, "a goodput of {}", setup.goodput_bytes_per_s);
  std::vector<double> ready_s;
  for (const BudgetBucket& bucket : setup.buckets) {
    ready_s.push_back(ready_s.empty() ? bucket.ready_s : std::max(ready_s.back(), bucket.ready_s));
  }
  const double latencies_s = static_cast<double>(setup.hops) * setup.latency_s;
  const double in_time_s = setup.backward_end_s + setup.slack_s - latencies_s;
  double elements = 0.0, fixed_bytes = 0.0;  // of the buckets from i on
  const auto ends_s = [&](std::size_t i) {   // at 0 bits
    return ready_s[i] + fixed_bytes * setup.wire_factor / setup.goodput_bytes_per_s;
  };
  double last_byte_s = in_time_s;
  for (std::size_t i = setup.buckets.size(); i-- > 0;) {
    elements += static_cast<double>(setup.buckets[i].elements);
    fixed_bytes += setup.buckets[i].fixed_bytes;
    if (elements == 0.0 && fixed_bytes == 0.0) continue;
    if (ends_s(i) > in_time_s) budget.fits = false;
    last_byte_s = std::max(last_byte_s, ends_s(i) + setup.slack_s);
  }
  elements = fixed_bytes = 0.0;
  for (std::size_t i = setup.buckets.size(); i-- > 0;) {
    elements += static_cast<double>(setup.buckets[i].elements);
    fixed_bytes += setup.buckets[i].fixed_bytes;
    if (elements == 0.0) continue;
    const double payload_bytes =
        (last_byte_s - ready_s[i]) * setup.goodput_bytes_per_s / setup.wire_factor - fixed_bytes;
    const double bits = 8.0 * std::max(0.0, payload_bytes) / elements;
    if (budget.binding && bits >= budget.bits_per_value) continue;
    budget.bits_per_value = bits;
    budget.binding = i;
  }
  return budget;
}

}  // namespace dp
