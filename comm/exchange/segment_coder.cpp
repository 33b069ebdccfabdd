// Outline: an encode has three parts. begin() chooses the quantiser's step size and examines the
// values. encode(), the only part that other threads run (encode_own), calls the codec. end()
// handles a sum that cannot be encoded, counts clamped values and takes the sample.
// add_and_encode() runs all three for one task; add() and assign_total() only decode.
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
  if (setup.threads != nullptr) own_.reserve(kMostAtOnce);
  setup.codec->reserve(longest_);
  const bool needs_exact = std::ranges::any_of(
      plan.tasks, [](const PlanTask& task) { return task.takes_exact || task.gives_exact; });
  if (needs_exact && setup_.exact == nullptr) {
    DP_ASSERT(!setup.codec->is_on_device(),
              "a codec on a device needs an exact codec on the same device");
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

SegmentCoder::Encode SegmentCoder::make_encode(const PlanTask& task, std::span<std::byte> payload) {
  const std::size_t begin = plan_.segments[task.segment].begin;
  const bool has_residual = setup_.residual != nullptr && !task.gives_exact;
  return {.task = task,
          .codec = task.gives_exact ? *setup_.exact : *setup_.codec,
          .sum = values(task),
          .residual = has_residual ? setup_.residual + begin : nullptr,
          .payload = payload,
          .context = {.seed = setup_.seed,
                      .step = step_,
                      .bucket = setup_.bucket,
                      .rank = static_cast<std::uint32_t>(setup_.transport->rank()),
                      .offset = setup_.offset + begin,
                      .quantiser_step = 0.0f,
                      .dense_bits = setup_.rate == nullptr ? 0 : setup_.rate->dense_bits},
          .is_sampled = !task.gives_exact && sample_.is_next(),
          .measures_squares = has_residual && measures_squares(task)};
}

// Call it when the sum to encode is complete.
void SegmentCoder::begin(Encode& encode) {
  encode.context.quantiser_step = step_of(encode.task, encode.sum, encode.residual);
  if (encode.is_sampled) sample_.before(encode.sum, encode.residual);
  if (setup_.rate != nullptr && setup_.rate->histograms != nullptr && !encode.task.gives_exact) {
    (*setup_.rate->histograms)[static_cast<std::size_t>(site_of(encode.task))].add(
        encode.sum, encode.residual, memory());
  }
}

void SegmentCoder::encode(Encode& encode, std::span<const std::byte> received) const {
  const std::span<float> sum = encode.sum;
  if (encode.measures_squares) {
    encode.squares.gradient = memory().squares_of_sum(sum.data(), nullptr, sum.size());
    encode.squares.values = memory().squares_of_sum(sum.data(), encode.residual, sum.size());
  }
  encode.result = encode.is_one_trip
                      ? encode.codec.decode_add_encode(received, sum, encode.residual,
                                                       encode.payload, encode.context)
                      : encode.codec.encode(sum, encode.residual, encode.payload, encode.context);
  if (encode.squares.values > 0.0 && encode.result.finite) {
    encode.squares.dropped = memory().squares_of_sum(encode.residual, nullptr, sum.size());
  }
}

void SegmentCoder::end(Encode& encode, std::span<const std::byte> received) {
  const PlanTask& task = encode.task;
  const std::size_t begin = plan_.segments[task.segment].begin;
  if (!encode.result.finite) {
    flag(task.segment);
    note_own(encode.sum, begin);
    if (task.take == Take::partial && task.holds_only_own_values) {
      incoming_codec(task).decode(received, encode.sum);
      encode.result =
          encode.codec.encode(encode.sum, encode.residual, encode.payload, encode.context);
    }
  }
  clamped_.add({.count = encode.result.clamped, .first = encode.result.first_clamped}, begin);
  if (is_flagged(task.segment)) return;
  if (encode.squares.values > 0.0) {
    squares_[static_cast<std::size_t>(site_of(task))] += encode.squares;
  }
  if (encode.is_sampled) {
    sample_.after(encode.sum, encode.residual, encode.payload.first(encode.result.payload_bytes),
                  stats_.sampled);
  }
}

std::size_t SegmentCoder::add_and_encode(const PlanTask& task, std::span<const std::byte> received,
                                         std::span<std::byte> payload) {
  const bool has_received = task.take == Take::partial;
  Encode encode = make_encode(task, payload);
  // A sample, and the choice of a step size, examine the values after adding and before encoding,
  // so adding and encoding must then be two calls.
  encode.is_one_trip = has_received && !encode.is_sampled && encode.codec.is_on_device() &&
                       !encode.codec.takes_step() && !task.takes_exact;
  if (has_received && !encode.is_one_trip) {
    const Stopwatch watch = decode_watch(task, false, received.size());
    incoming_codec(task).decode_add(received, encode.sum);
  }
  {
    Stopwatch watch = encode_watch(task);
    begin(encode);
    this->encode(encode, received);
    end(encode, received);
    watch.set_bytes(encode.result.payload_bytes);
  }
  const std::size_t bytes = encode.result.payload_bytes;
  if (task.give == Give::total) {
    // From now on this rank holds the values that all others will decode.
    is_finite_ = is_finite_ && !is_flagged(task.segment);
    if (!encode.codec.is_lossless() || !encode.result.finite) {
      const Stopwatch watch = decode_watch(task, true, bytes);
      encode.codec.decode(payload.first(bytes), encode.sum);
    }
  }
  return bytes;
}

void SegmentCoder::encode_own(std::span<const PlanTask* const> tasks,
                              std::span<std::span<std::byte>> payloads) {
  DP_ASSERT(tasks.size() <= kMostAtOnce, "{} segments at once", tasks.size());
  const TraceClock::time_point start = TraceClock::now();
  own_.clear();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    DP_ASSERT(!tasks[i]->takes() && tasks[i]->give == Give::partial,
              "the message of segment {} is not made from this rank's gradient alone",
              tasks[i]->segment);
    own_.push_back(make_encode(*tasks[i], payloads[i]));
    begin(own_.back());
  }
  setup_.threads->for_each(own_.size(), [&](std::size_t i) { encode(own_[i], {}); });
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    end(own_[i], {});
    payloads[i] = payloads[i].first(own_[i].result.payload_bytes);
  }
  const TraceClock::duration all = TraceClock::now() - start;
  stats_.encode_s += std::chrono::duration<double>(all).count();
  if (setup_.trace == nullptr) return;
  const auto count = static_cast<TraceClock::rep>(tasks.size());
  for (TraceClock::rep i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    TraceEvent event = slice(TraceKind::encode, *tasks[at], false, payloads[at].size());
    event.begin_ns = trace_ns(start + all * i / count);
    event.end_ns = trace_ns(start + all * (i + 1) / count);
    setup_.trace->add(event);
  }
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
  if (step <= 0.0f || bits <= 0.0) return step;
  return rates_.step_for(
      task.segment, sum, residual,
      {.step = step, .planned_bits = bits, .share_factor = setup_.rate->even.share_factors[site]},
      memory());
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
