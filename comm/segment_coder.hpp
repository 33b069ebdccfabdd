// What one rank's codecs do for the exchange of a bucket: messages are added to its values, and
// its values become messages. Every call of a codec is measured and traced, and one encode a step
// is sampled (encode_sample.hpp).
//
// A rank whose own values of a segment are not finite counts as one with zeros: it passes on what
// it received, and the flag. Where even that cannot be encoded it sends zeros and keeps its
// residual.
//
// Finite values whose sum is more than the codec can carry (2^126 for most) are treated likewise: a
// rank that has added one message of the codec's to its own values counts as one with zeros and
// passes that message on. One that has added several (the owner on direct, the root and the inner
// ranks of a tree, the parameter server) cannot take its own values out again: it sends zeros, and
// what those messages carried of that segment is lost, with what their senders' residuals had given
// to it. That is the one case in which a skipped step takes something from residuals for good; sums
// within the codec's range, and all other segments, lose nothing.
//
// Payloads that no encoder writes are the codec's Error(communication). Nothing is allocated after
// construction.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/exchange.hpp"
#include "comm/exchange_plan.hpp"

namespace dp {

class Stopwatch;

class SegmentCoder {
 public:
  // For the tasks of `plan`; adds what it costs to `stats`. Both outlive it.
  SegmentCoder(const ExchangeSetup& setup, const ExchangePlan& plan, ExchangeStats& stats);

  // Of any message of the plan.
  [[nodiscard]] std::size_t max_payload_bytes() const;

  void begin_step(std::uint64_t step);
  void measure_saturation() { sample_.measure_saturation(); }

  // Whether some rank's input to the segment was not finite, as far as this rank knows.
  void flag(std::uint32_t segment) { is_flagged_[segment] = 1; }
  [[nodiscard]] bool is_flagged(std::uint32_t segment) const { return is_flagged_[segment] != 0; }
  // Whether all segments whose total this rank holds were finite on all ranks.
  [[nodiscard]] bool is_finite() const { return is_finite_; }

  // What a task does with the payload that it has taken, if nothing is sent in the same task:
  // adds a partial sum, or assigns the total.
  void add(const PlanTask& task, std::span<const std::byte> received);
  void assign_total(const PlanTask& task, std::span<const std::byte> received);
  // Adds the payload that the task has taken, if it takes one, and encodes the sum; where that is
  // the total, it is replaced by what others decode. Returns the payload's length.
  std::size_t encode(const PlanTask& task, std::span<const std::byte> received,
                     std::span<std::byte> payload);

  // Where nothing is exchanged the sum is there already, and only the verdict is to be found.
  void judge_own_values();
  // Exchange::put_back_delivered.
  void put_back_delivered();

 private:
  [[nodiscard]] const SegmentMemory& memory() const { return setup_.codec->memory(); }
  [[nodiscard]] std::span<float> values(const PlanTask& task) const;
  [[nodiscard]] const Codec& incoming_codec(const PlanTask& task) const {
    return task.takes_exact ? *setup_.exact : *setup_.codec;
  }
  [[nodiscard]] Stopwatch encode_watch(const PlanTask& task);
  [[nodiscard]] Stopwatch decode_watch(const PlanTask& task, bool is_total, std::size_t bytes);
  [[nodiscard]] TraceEvent slice(TraceKind kind, const PlanTask& task, bool is_total,
                                 std::size_t bytes) const;

  ExchangeSetup setup_;
  const ExchangePlan& plan_;
  ExchangeStats& stats_;
  std::unique_ptr<Codec> own_exact_;  // where the setup has none and the plan needs it
  std::size_t longest_ = 0;           // of the segments
  EncodeSample sample_;
  std::uint64_t step_ = 0;
  bool is_finite_ = true;
  std::vector<std::uint8_t> is_flagged_;  // by segment
};

}  // namespace dp
