// The exchange of one bucket: a state machine that never waits.
//
// An exchange replaces every rank's values of a bucket by their sum, with the same bits on all
// ranks. The reducer drives several exchanges at once. It calls progress() until delivered() (the
// sum is in place) and done() (all transfers have ended, so another bucket may use the buffers).
//
//     post_receives   before any rank starts, so that no message has to wait for its buffer
//     prepare         this rank's values are final: converts them to the values to exchange
//     start           the exchange begins on this rank
//     progress        handles arrived messages, at most one segment a call; true if something moved
//
// All ranks run the same exchanges of a bucket, one after the other. When a new object takes over a
// bucket's number on the same transport, the caller must run a barrier first.
//
// A topology is a list of messages, which one engine carries out (segment_exchange.hpp). An
// exchange gets its bucket at construction, and its message buffers anew for each step. A *buffer
// set* is the message buffers of one bucket in flight. Failures throw Error(communication); the
// exchange's state is then undefined, and the job must end.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/exchange/codec_threads.hpp"
#include "comm/exchange/encode_sample.hpp"
#include "comm/mpi/transport.hpp"
#include "comm/rate/rate_control.hpp"
#include "kernels/base/state.hpp"
#include "kernels/base/trace.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/device.hpp"

namespace dp {

// The inputs of an exchange. They are the same on all ranks, except for the memory. Everything that
// they refer to must outlive the exchange.
struct ExchangeSetup {
  Transport* transport = nullptr;  // this rank's, shared by its exchanges
  std::uint32_t bucket = 0;        // the bucket's number
  std::uint32_t stream = 0;        // the first of the bucket's own message streams (tags.hpp)
  std::uint64_t offset = 0;        // of the bucket in the flat gradient, for EncodeContext
  std::span<float> gradient;       // the bucket's values, then their sum; in codec->memory()
  float* residual = nullptr;       // as long as `gradient`; null: no error feedback
  const Codec* codec = nullptr;
  // The codec `none` on the same memory, for sums inside a host. Null: the exchange makes one on
  // host memory when it needs it.
  const Codec* exact = nullptr;
  std::uint64_t seed = 0;
  std::size_t segment = 65536;      // floats, a multiple of the codec's block
  std::size_t window = 4;           // segments that a rank may have on the wire at once
  bool has_brief_messages = false;  // as in ExchangeShape
  // Each rank's host as a number, by rank. Empty: each rank is on its own host.
  std::span<const int> hosts = {};
  // For `direct`: the weight of each rank's part of the bucket, by rank. Empty: equal parts.
  std::span<const std::uint32_t> owner_weights = {};
  // Threads that encode several segments at a time, if the segments hold only this rank's own
  // values. Null: progress() encodes one segment at a time.
  CodecThreads* threads = nullptr;
  TraceTrack* trace = nullptr;  // receives the codecs' slices; null: no trace
  // The step sizes that a quantiser with a variable number of bits per value must use. They may
  // change from one training step to the next. Null: the codec chooses its step sizes. If `rate` is
  // set, messages carry rate notes (rate_control.hpp). Hence `rate` must be set on all ranks or on
  // none.
  const RateOrder* rate = nullptr;
  // Becomes true when this rank wishes to stop; any thread may set it at any time. Null: this rank
  // never wishes to stop.
  const std::atomic<bool>* stop_wish = nullptr;
};

// How many values this rank's encodes have clamped in one training step (EncodeResult::clamped),
// and the index of the first of them. In an exchange the index counts from the start of the bucket.
struct ClampedValues {
  std::uint64_t count = 0;
  std::size_t first = static_cast<std::size_t>(-1);

  void add(const ClampedValues& more, std::size_t offset) {
    if (more.count == 0) return;
    count += more.count;
    first = std::min(first, offset + more.first);
  }
};

// Costs of a bucket's exchanges since clear_stats(). On a GPU one call decodes, adds and encodes a
// segment that is passed on; all of the call's time counts as encode_s.
struct ExchangeStats {
  double encode_s = 0.0;
  double decode_s = 0.0;
  std::uint64_t sent_bytes = 0;  // payloads and headers
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_messages = 0;  // segments and start notices, once for each receiver
  EncodeSample::Sums sampled;
};

struct BufferNeeds {
  std::size_t count = 0;
  std::size_t bytes = 0;  // of each
};

// Message buffers, aligned to cache lines. With a device they are host memory that the device can
// reach.
class BufferSet {
 public:
  explicit BufferSet(const BufferNeeds& needs, Device* device = nullptr)
      : stride_((needs.bytes + kAlignment - 1) / kAlignment * kAlignment), bytes_(needs.bytes) {
    const std::size_t all = stride_ * needs.count + kAlignment;
    if (device != nullptr) {
      memory_ = device->allocate_host(all);
    } else {
      memory_.reset(new (std::align_val_t{kAlignment}) std::byte[all],
                    [](std::byte* p) { ::operator delete[](p, std::align_val_t{kAlignment}); });
    }
  }
  [[nodiscard]] std::byte* at(std::size_t i) const { return memory_.get() + i * stride_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::size_t stride_, bytes_;
  Device::Memory memory_;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  [[nodiscard]] virtual BufferNeeds needs() const = 0;
  virtual void post_receives(BufferSet& buffers, std::uint64_t step) = 0;
  virtual void prepare() {}
  virtual void start() = 0;
  virtual bool progress() = 0;
  [[nodiscard]] virtual bool delivered() const = 0;
  [[nodiscard]] virtual bool done() const = 0;
  // After delivered(): false if any rank's input was not finite. The same on all ranks.
  [[nodiscard]] virtual bool finite() const = 0;
  // After delivered(): the index, in the bucket, of the first of this rank's own values that is not
  // finite; kAllFinite if there is none. On a GPU it may be the start of that value's segment.
  static constexpr std::size_t kAllFinite = static_cast<std::size_t>(-1);
  [[nodiscard]] virtual std::size_t first_not_finite() const { return kAllFinite; }
  // After delivered(): the values that this rank has clamped. Always zero on a GPU, where codecs do
  // not count them.
  [[nodiscard]] virtual ClampedValues clamped() const { return {}; }
  // After delivered(): whether some rank asked in this exchange to stop. The same on all ranks.
  // False for exchanges that send nothing.
  [[nodiscard]] virtual bool stop_is_wished() const = 0;
  // After delivered(): the bytes that all ranks have sent in this step's exchange. Empty without
  // ExchangeSetup::rate, and if nothing is sent.
  [[nodiscard]] virtual RateTally rate_tally() const { return {}; }
  // True while this rank has nothing in flight and some rank has not started this bucket.
  [[nodiscard]] virtual bool waits_for_peer() const = 0;
  // Call it on all ranks if a step is skipped. Each rank adds to its residual the delivered sums
  // that it has encoded, so that the residuals in these sums are not lost. Does nothing without
  // error feedback.
  virtual void put_back_delivered() = 0;
  // Call it when this rank ends. If a link model is still holding back messages, hands them all to
  // MPI at once, so that no other rank waits for them.
  virtual void let_go() = 0;
  // Requests a count of saturated values in one encode of the next step (encode_sample.hpp). Does
  // nothing for exchanges without a scale.
  virtual void measure_saturation() {}
  // Call it between steps. Lists the state that an exchange keeps from step to step in addition to
  // the residual; most keep none.
  virtual void list_state(const std::string& /*prefix*/, StateVisitor& /*visitor*/) {}

  [[nodiscard]] const ExchangeStats& stats() const { return stats_; }
  void clear_stats() { stats_ = {}; }
  // For an exchange that takes over another exchange's bucket.
  void set_stats(const ExchangeStats& stats) { stats_ = stats; }

 protected:
  // Moves the costs of `inner`, an exchange inside this one, to this exchange: adds them to its
  // costs and clears them in `inner`.
  void take_over_stats(Exchange& inner) {
    const ExchangeStats& more = inner.stats();
    stats_.encode_s += more.encode_s;
    stats_.decode_s += more.decode_s;
    stats_.sent_bytes += more.sent_bytes;
    stats_.received_bytes += more.received_bytes;
    stats_.sent_messages += more.sent_messages;
    stats_.sampled += more.sampled;
    inner.clear_stats();
  }

  ExchangeStats stats_;
};

}  // namespace dp
