#include "comm/rate_inputs.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace dp {

namespace {

// The gradient and the residual are in `memory`.
MagnitudeHistogram count_in(const Reducer& reducer, const SegmentMemory& memory,
                            std::span<const float> gradient) {
  const std::span<const float> residual = reducer.residual();
  MagnitudeHistogram histogram;
  for (std::size_t b = 0; b < reducer.buckets().size(); ++b) {
    const Bucket& bucket = reducer.buckets()[b];
    if (!has_rate(bucket.codec)) continue;
    const ExchangePlan plan = reducer.plan_of(b);
    for (const PlanTask& task : plan.tasks) {
      if (task.give != PlanTask::Give::partial) continue;
      const ExchangePlan::Segment& segment = plan.segments[task.segment];
      const std::size_t begin = bucket.offset + segment.begin;
      histogram.add(gradient.subspan(begin, segment.size),
                    residual.empty() ? nullptr : residual.data() + begin, memory);
    }
  }
  return histogram;
}

}  // namespace

MagnitudeHistogram count_own_values(Reducer& reducer, Device* gpu, std::span<const float> gradient,
                                    bool is_residual_on_gpu) {
  if (gpu == nullptr) return count_in(reducer, host_memory(), gradient);
  if (!is_residual_on_gpu) return count_in(reducer, host_memory(), to_host(*gpu, gradient));
  gpu->synchronize();
  return reducer.run([&](Communicator&) { return count_in(reducer, reducer.memory(), gradient); });
}

std::optional<StepWatch> watch_steps(const Reducer& reducer, double bytes_per_s, double latency_s) {
  constexpr double kUnknownLink = 125e6;  // 1 Gbit/s; measurements soon correct it
  const std::vector<Bucket>& buckets = reducer.buckets();
  std::vector<BudgetBucket> shares;
  std::size_t hops = 0;
  double wire_factor = 0.0;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    wire_factor = std::max(wire_factor, reducer.wire_factor(b));
  }
  if (wire_factor == 0.0) return std::nullopt;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const bool is_rated = has_rate(buckets[b].codec);
    const std::optional<std::uint64_t> bytes = reducer.wire_bytes(b);
    shares.push_back({.elements = is_rated ? buckets[b].elements : 0,
                      .fixed_bytes = static_cast<double>(bytes.value_or(0)) / wire_factor});
    hops = std::max(hops, reducer.hops(b));
  }
  AutoRate rate(
      std::move(shares), hops, wire_factor,
      {.bytes_per_s = bytes_per_s > 0.0 ? bytes_per_s : kUnknownLink, .latency_s = latency_s});
  return StepWatch(std::move(rate), buckets.size());
}

}  // namespace dp
