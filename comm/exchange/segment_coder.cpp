#include "comm/exchange/segment_coder.hpp"

#include <algorithm>

#include "comm/exchange/stopwatch.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Take = PlanTask::Take;
using Give = PlanTask::Give;

std::size_t longest_segment(const ExchangePlan& plan) {
  std::size_t longest = 0;
  for (const auto& segment : plan.segments) longest = std::max(longest, segment.size);
  return longest;
}

// Counts encodes by the exchange's own codec; only these can be sampled.
std::size_t encodes_per_step(const ExchangePlan& plan) {
  return static_cast<std::size_t>(std::ranges::count_if(
      plan.tasks, [](const PlanTask& t) { return t.encodes() && !t.gives_exact; }));
}

}  // namespace

std::size_t find_not_finite(const SegmentMemory& memory, std::span<const float> values) {
  std::size_t begin = 0, end = values.size();
  if (memory.is_finite(values.data(), end)) return 0;
  while (end - begin > 1) {
    const std::size_t middle = begin + (end - begin) / 2;
    if (memory.is_finite(values.data() + begin, middle - begin)) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  return begin;
}

SegmentCoder::SegmentCoder(const ExchangeSetup& setup, const ExchangePlan& plan,
                           ExchangeStats& stats)
    : setup_(setup),
      plan_(plan),
      stats_(stats),
      longest_(longest_segment(plan)),
      sample_(*setup.codec, encodes_per_step(plan), longest_),
      is_flagged_(plan.segments.size()),
      rates_(plan.segments.size()) {
  const bool needs_exact = std::ranges::any_of(
      plan.tasks, [](const PlanTask& task) { return task.takes_exact || task.gives_exact; });
  if (needs_exact && setup_.exact == nullptr) {
    DP_ASSERT(!setup.codec->is_on_device(), "no codec for fp32 in the memory of the device");
    own_exact_ = make_codec(CodecSpec::exact());
    setup_.exact = own_exact_.get();
  }
}

std::size_t SegmentCoder::max_payload_bytes() const {
  const std::size_t bytes = setup_.codec->max_payload_bytes(longest_);
  if (setup_.exact == nullptr) return bytes;
  return std::max(bytes, setup_.exact->max_payload_bytes(longest_));
}

void SegmentCoder::begin_step(std::uint64_t step) {
  step_ = step;
  is_finite_ = true;
  first_not_finite_ = Exchange::kAllFinite;
  std::ranges::fill(is_flagged_, std::uint8_t{0});
  clamped_ = {};
  squares_ = {};
  sample_.begin_step(step);
}

void SegmentCoder::add(const PlanTask& task, std::span<const std::byte> received) {
  const Stopwatch watch = decode_watch(task, false, received.size());
  const std::span<float> sum = values(task);
  if (task.holds_only_own_values && !memory().is_finite(sum.data(), sum.size())) {
    flag(task.segment);
    note_own(sum, plan_.segments[task.segment].begin);
    incoming_codec(task).decode(received, sum);
  } else {
    incoming_codec(task).decode_add(received, sum);
  }
}

void SegmentCoder::assign_total(const PlanTask& task, std::span<const std::byte> received) {
  is_finite_ = is_finite_ && !is_flagged(task.segment);
  const Stopwatch watch = decode_watch(task, true, received.size());
  incoming_codec(task).decode(received, values(task));
}

std::size_t SegmentCoder::add_and_encode(const PlanTask& task, std::span<const std::byte> received,
                                         std::span<std::byte> payload) {
  const bool has_received = task.take == Take::partial;
  const std::span<float> sum = values(task);
  const std::size_t begin = plan_.segments[task.segment].begin;
  const Codec& codec = task.gives_exact ? *setup_.exact : *setup_.codec;
  EncodeContext context{.seed = setup_.seed,
                        .step = step_,
                        .bucket = setup_.bucket,
                        .rank = static_cast<std::uint32_t>(setup_.transport->rank()),
                        .offset = setup_.offset + begin,
                        .quantiser_step = 0.0f,
                        .dense_bits = setup_.rate == nullptr ? 0 : setup_.rate->dense_bits};
  float* residual =
      setup_.residual == nullptr || task.gives_exact ? nullptr : setup_.residual + begin;
  const bool is_sampled = !task.gives_exact && sample_.is_next();
  // A sample examines the values after adding and before encoding.
  const bool is_one_trip = has_received && !is_sampled && codec.is_on_device() && !task.takes_exact;
  if (has_received && !is_one_trip) {
    const Stopwatch watch = decode_watch(task, false, received.size());
    incoming_codec(task).decode_add(received, sum);
  }
  EncodeResult result;
  bool is_flagged_now = false;
  {
    Stopwatch watch = encode_watch(task);
    context.quantiser_step = step_of(task, sum, residual);
    if (is_sampled) sample_.before(sum, residual);
    if (setup_.rate != nullptr && setup_.rate->histograms != nullptr && !task.gives_exact) {
      (*setup_.rate->histograms)[static_cast<std::size_t>(site_of(task))].add(sum, residual);
    }
    EncodedSquares squares;
    if (residual != nullptr && measures_squares(task)) {
      squares.gradient = memory().squares_of_sum(sum.data(), nullptr, sum.size());
      squares.values = memory().squares_of_sum(sum.data(), residual, sum.size());
    }
    result = is_one_trip ? codec.decode_add_encode(received, sum, residual, payload, context)
                         : codec.encode(sum, residual, payload, context);
    if (!result.finite) {
      flag(task.segment);
      note_own(sum, begin);
      if (has_received && task.holds_only_own_values) {
        incoming_codec(task).decode(received, sum);
        result = codec.encode(sum, residual, payload, context);
      }
    }
    clamped_.add({.count = result.clamped, .first = result.first_clamped}, begin);
    is_flagged_now = is_flagged(task.segment);
    if (squares.values > 0.0 && !is_flagged_now) {
      squares.dropped = memory().squares_of_sum(residual, nullptr, sum.size());
      squares_[static_cast<std::size_t>(site_of(task))] += squares;
    }
    if (is_sampled && !is_flagged_now) {
      sample_.after(sum, residual, payload.first(result.payload_bytes), stats_.sampled);
    }
    watch.set_bytes(result.payload_bytes);
  }
  if (task.give == Give::total) {
    // From now on this rank holds what all others will decode.
    is_finite_ = is_finite_ && !is_flagged_now;
    if (!codec.is_lossless() || !result.finite) {
      const Stopwatch watch = decode_watch(task, true, result.payload_bytes);
      codec.decode(payload.first(result.payload_bytes), sum);
    }
  }
  return result.payload_bytes;
}

void SegmentCoder::judge_own_values() {
  is_finite_ = memory().is_finite(setup_.gradient.data(), setup_.gradient.size());
  if (!is_finite_) note_own(setup_.gradient, 0);
}

void SegmentCoder::note_own(std::span<const float> values, std::size_t begin) {
  first_not_finite_ = std::min(first_not_finite_, begin + find_not_finite(memory(), values));
}

void SegmentCoder::put_back_delivered() {
  if (setup_.residual == nullptr) return;
  for (const PlanTask& task : plan_.tasks) {
    if (task.give != Give::total || task.gives_exact) continue;
    const std::span<float> sum = values(task);
    const std::size_t begin = plan_.segments[task.segment].begin;
    memory().add(sum.data(), setup_.residual + begin, sum.size());
  }
}

RateSite SegmentCoder::site_of(const PlanTask& task) {
  return task.give == Give::total ? RateSite::total : RateSite::partial;
}

float SegmentCoder::step_of(const PlanTask& task, std::span<const float> sum,
                            const float* residual) {
  if (setup_.rate == nullptr || task.gives_exact) return 0.0f;
  const auto site = static_cast<std::size_t>(site_of(task));
  const float step = setup_.rate->steps[site];
  const double bits = setup_.rate->even.bits[site];
  if (step <= 0.0f || bits <= 0.0 || setup_.codec->is_on_device()) return step;
  return rates_.step_for(
      task.segment, sum, residual,
      {.step = step, .planned_bits = bits, .share_factor = setup_.rate->even.share_factors[site]});
}

bool SegmentCoder::measures_squares(const PlanTask& task) const {
  return setup_.rate != nullptr && setup_.rate->measures_squares && !task.gives_exact;
}

std::span<float> SegmentCoder::values(const PlanTask& task) const {
  const auto& [begin, size] = plan_.segments[task.segment];
  return setup_.gradient.subspan(begin, size);
}

Stopwatch SegmentCoder::encode_watch(const PlanTask& task) {
  return {stats_.encode_s, setup_.trace,
          slice(TraceKind::encode, task, task.give == Give::total, 0)};
}

Stopwatch SegmentCoder::decode_watch(const PlanTask& task, bool is_total, std::size_t bytes) {
  return {stats_.decode_s, setup_.trace, slice(TraceKind::decode, task, is_total, bytes)};
}

TraceEvent SegmentCoder::slice(TraceKind kind, const PlanTask& task, bool is_total,
                               std::size_t bytes) const {
  return {.bytes = bytes,
          .step = static_cast<std::uint32_t>(step_),
          .id = setup_.bucket,
          .segment = task.segment,
          .kind = kind,
          .is_total = is_total};
}

}  // namespace dp
