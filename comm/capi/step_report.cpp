#include "comm/capi/step_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>
#include <vector>

#include "comm/topologies/buckets.hpp"

namespace dp::capi {
namespace {

void tell(const std::string& text) { std::fprintf(stderr, "dptrain_comm: %s\n", text.c_str()); }

// The tensor that holds value `place` of the gradient: its name, or its slot if it has none.
std::string tensor_at(const Layout& layout, std::size_t place) {
  const auto after = std::ranges::upper_bound(layout.tensors, place, {}, &TensorSlot::offset);
  const auto tensor = static_cast<std::size_t>(std::distance(layout.tensors.begin(), after)) - 1;
  if (!layout.tensors[tensor].name.empty()) return layout.tensors[tensor].name;
  const auto slot = std::ranges::find(layout.tensor_of_slot, tensor);
  return fmt::format("slot {}", std::distance(layout.tensor_of_slot.begin(), slot));
}

const Bucket& bucket_at(const Reducer& reducer, std::size_t place) {
  return *std::ranges::find_if(reducer.buckets(), [place](const Bucket& bucket) {
    return place >= bucket.offset && place < bucket.offset + bucket.elements;
  });
}

// Collective.
void tell_not_finite(const StepVerdict& verdict, std::uint64_t step, const Layout& layout,
                     Reducer& reducer) {
  constexpr std::uint64_t kNowhere = Exchange::kAllFinite;
  const std::vector<std::uint64_t> places = reducer.run(
      [&](Communicator& comm) { return comm.all_gather(std::uint64_t{verdict.first_not_finite}); });
  if (dptrain_comm_rank() != 0) return;
  const auto is_bad = [](std::uint64_t place) { return place != kNowhere; };
  const auto first = std::ranges::find_if(places, is_bad);
  std::string where = "in the sum over ranks, but on no single rank";
  if (first != places.end()) {
    where = fmt::format("on rank {}, first in {}", std::distance(places.begin(), first),
                        tensor_at(layout, *first));
    const auto others = std::ranges::count_if(places, is_bad) - 1;
    if (others > 0) where += fmt::format(" (and on {} more)", others);
  }
  tell(fmt::format(
      "step {}: the gradient is not finite {}; all ranks must skip the step. Later such "
      "steps are counted, not reported",
      step + 1, where));
}

void tell_clamped(const ClampedValues& clamped, std::uint64_t step, const Layout& layout,
                  const Reducer& reducer) {
  const CodecSpec& codec = bucket_at(reducer, clamped.first).codec;
  tell(
      fmt::format("step {}: {} has clamped {} values on rank {} to its largest one, first in {}; "
                  "the excess is {}. A loss scaler does not see this overflow: give it a "
                  "smaller scale, or use bf16. Later such steps are counted, not reported",
                  step + 1, codec.name, clamped.count, dptrain_comm_rank(),
                  tensor_at(layout, clamped.first), codec.feedback ? "sent later" : "lost"));
}

}  // namespace

void StepReport::add(const StepVerdict& verdict, std::uint64_t step, const Layout& layout,
                     Reducer& reducer) {
  if (!verdict.finite) {
    ++counts_.skipped_steps;
    if (!std::exchange(has_told_not_finite_, true)) {
      tell_not_finite(verdict, step, layout, reducer);
    }
  }
  counts_.clamped_values += verdict.clamped.count;
  if (verdict.clamped.count > 0 && !std::exchange(has_told_clamped_, true)) {
    tell_clamped(verdict.clamped, step, layout, reducer);
  }
}

StepReport::Counts StepReport::take() { return std::exchange(counts_, {}); }

}  // namespace dp::capi
