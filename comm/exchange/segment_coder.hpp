// Makes all codec calls of one rank in the exchange of a bucket: decodes received payloads into the
// rank's values and encodes these values into payloads. Every call is timed and traced, and one
// encode per step is sampled (encode_sample.hpp).
//
// If a rank's own values of a segment are not finite, they count as zeros: the rank passes on what
// it received, and sets the flag kNotFinite (message_header.hpp). If what it received cannot be
// encoded either, the rank sends zeros and keeps its residual.
//
// Finite values whose sum exceeds the codec's range (2^126 for most codecs) are treated in the same
// way. A rank that has added one encoded message to its own values drops its own values and passes
// that message on. A rank that has added several messages (the owner on direct, the root and the
// inner ranks of a tree, the parameter server) cannot remove its own values again. It sends zeros,
// and the received parts of that segment are lost, including the senders' residuals in them. This
// is the only case in which a skipped step loses residuals for good.
//
// For a payload that no encoder writes, the codec throws Error(communication). Nothing is allocated
// after construction.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/exchange/exchange.hpp"
#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/segment_rates.hpp"

namespace dp {

class Stopwatch;

// The index of the first value that is not finite; 0 if all are finite. `memory` is the memory that
// holds the values. It searches by bisection, with one call of is_finite() for each halving, so use
// it only after a failure.
[[nodiscard]] std::size_t find_not_finite(const SegmentMemory& memory,
                                          std::span<const float> values);

class SegmentCoder {
 public:
  // Encodes and decodes for the tasks of `plan`, and adds the costs to `stats`. Both outlive this
  // object.
  SegmentCoder(const ExchangeSetup& setup, const ExchangePlan& plan, ExchangeStats& stats);

  // The largest payload of any message of the plan.
  [[nodiscard]] std::size_t max_payload_bytes() const;

  void begin_step(std::uint64_t step);
  void measure_saturation() { sample_.measure_saturation(); }

  // Marks a segment because some rank's input to it was not finite.
  void flag(std::uint32_t segment) { is_flagged_[segment] = 1; }
  [[nodiscard]] bool is_flagged(std::uint32_t segment) const { return is_flagged_[segment] != 0; }
  // Whether all ranks had finite inputs to every segment whose total this rank holds.
  [[nodiscard]] bool is_finite() const { return is_finite_; }
  // Exchange::first_not_finite.
  [[nodiscard]] std::size_t first_not_finite() const { return first_not_finite_; }
  // Exchange::clamped.
  [[nodiscard]] const ClampedValues& clamped() const { return clamped_; }
  // Sums of squares of all that this step has encoded, if RateOrder::measures_squares asks for
  // them.
  [[nodiscard]] const SiteSquares& squares() const { return squares_; }

  // For a task that takes a payload and encodes nothing: adds a partial sum, or assigns the total.
  void add(const PlanTask& task, std::span<const std::byte> received);
  void assign_total(const PlanTask& task, std::span<const std::byte> received);
  // Adds the payload that the task has taken, if any, and encodes the sum. A total is then replaced
  // by the values that the other ranks will decode. Returns the length of the encoded payload.
  std::size_t add_and_encode(const PlanTask& task, std::span<const std::byte> received,
                             std::span<std::byte> payload);

  // Encodes the partial sums of up to kMostAtOnce tasks that take nothing, with
  // ExchangeSetup::threads. Writes the payload of tasks[i] to the start of payloads[i], and
  // shortens payloads[i] to that payload. In a trace, the time of the whole call is divided evenly
  // among the tasks.
  static constexpr std::size_t kSegmentsAThread = 4;  // waking a thread takes a third of an encode
  static constexpr std::size_t kMostAtOnce = kSegmentsAThread * CodecThreads::kMost;
  void encode_own(std::span<const PlanTask* const> tasks, std::span<std::span<std::byte>> payloads);

  // For an exchange that sends nothing (one rank): only determines whether the values are finite.
  void judge_own_values();
  // Lists the state of segment_rates.hpp, which codecs with a variable number of bits per value
  // keep from step to step.
  void list_state(const std::string& prefix, StateVisitor& visitor) {
    if (setup_.rate != nullptr) rates_.list_state(visitor, prefix);
  }
  // Exchange::put_back_delivered.
  void put_back_delivered();

 private:
  // One encode. begin() and end() are called in the order of the tasks; any thread may call
  // encode().
  struct Encode {
    const PlanTask& task;
    const Codec& codec;
    std::span<float> sum;
    float* residual;  // null: no feedback
    std::span<std::byte> payload;
    EncodeContext context;
    bool is_sampled, measures_squares;
    bool is_one_trip = false;  // the codec decodes, adds and encodes in one call
    EncodedSquares squares = {};
    EncodeResult result = {};
  };
  [[nodiscard]] Encode make_encode(const PlanTask& task, std::span<std::byte> payload);
  void begin(Encode& encode);
  void encode(Encode& encode, std::span<const std::byte> received) const;
  void end(Encode& encode, std::span<const std::byte> received);

  [[nodiscard]] const SegmentMemory& memory() const { return setup_.codec->memory(); }
  [[nodiscard]] std::span<float> values(const PlanTask& task) const;
  [[nodiscard]] const Codec& incoming_codec(const PlanTask& task) const {
    return task.takes_exact ? *setup_.exact : *setup_.codec;
  }
  [[nodiscard]] static RateSite site_of(const PlanTask& task);
  [[nodiscard]] float step_of(const PlanTask& task, std::span<const float> sum,
                              const float* residual);
  [[nodiscard]] bool measures_squares(const PlanTask& task) const;
  void note_own(std::span<const float> values, std::size_t begin);
  [[nodiscard]] Stopwatch encode_watch(const PlanTask& task);
  [[nodiscard]] Stopwatch decode_watch(const PlanTask& task, bool is_total, std::size_t bytes);
  [[nodiscard]] TraceEvent slice(TraceKind kind, const PlanTask& task, bool is_total,
                                 std::size_t bytes) const;

  ExchangeSetup setup_;
  const ExchangePlan& plan_;
  ExchangeStats& stats_;
  std::unique_ptr<Codec> own_exact_;  // if the setup has none and the plan needs one
  std::size_t longest_ = 0;           // of the segments
  EncodeSample sample_;
  std::uint64_t step_ = 0;
  bool is_finite_ = true;
  std::size_t first_not_finite_ = Exchange::kAllFinite;
  std::vector<std::uint8_t> is_flagged_;  // by segment
  ClampedValues clamped_;
  SiteSquares squares_ = {};
  std::vector<Encode> own_;  // of encode_own
  SegmentRates rates_;
};

}  // namespace dp
