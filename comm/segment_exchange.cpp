#include "comm/segment_exchange.hpp"

#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>

#include "comm/check.hpp"
#include "comm/stopwatch.hpp"
#include "comm/tags.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::uint32_t kSegmentKind = 0x44500001u;
constexpr std::uint32_t kStartKind = 0x44500002u;
constexpr std::uint32_t kNotFinite = 0x100u;

struct MessageHeader {
  std::uint32_t kind = 0;
  std::uint32_t step = 0;
  std::uint32_t stream = 0;
  std::uint32_t number = 0;
};
static_assert(sizeof(MessageHeader) == kMessageHeaderBytes);

using Take = PlanTask::Take;
using Give = PlanTask::Give;

class SegmentExchange final : public Exchange {
 public:
  SegmentExchange(const ExchangeSetup& setup, ExchangePlan plan)
      : setup_(setup),
        plan_(std::move(plan)),
        rank_(setup.communicator->rank()),
        ranks_(static_cast<std::size_t>(setup.communicator->size())) {
    DP_ASSERT(setup.window > 0 && setup.segment > 0, "window {}, segment {}", setup.window,
              setup.segment);
    DP_ASSERT(setup.segment % setup.codec->block() == 0, "segment {} and block {}", setup.segment,
              setup.codec->block());
    if (is_idle()) return;
    bool needs_exact = false;
    std::size_t encodes_per_step = 0;
    for (const PlanTask& task : plan_.tasks) {
      needs_exact = needs_exact || task.takes_exact || task.gives_exact;
      most_targets_ = std::max<std::size_t>(most_targets_, task.target_count);
      if (encodes(task) && !task.gives_exact) ++encodes_per_step;
    }
    for (const auto& segment : plan_.segments) longest_ = std::max(longest_, segment.size);
    if (needs_exact && setup_.exact == nullptr) {
      DP_ASSERT(!setup.codec->is_on_device(), "no codec for fp32 in the memory of the device");
      own_exact_ = make_codec(parse_codec_spec("none"));
      setup_.exact = own_exact_.get();
    }
    const std::size_t w = setup.window;
    receives_.resize(2 * w);
    sends_.resize(w);
    delayed_.resize(w * most_targets_);
    arrival_order_.resize(2 * w);
    const std::size_t requests = notice_request() + 1 + (ranks_ - 1);
    requests_.assign(requests, MPI_REQUEST_NULL);
    completed_.resize(requests);
    statuses_.resize(requests);
    is_flagged_.resize(plan_.segments.size());
    sample_.emplace(*setup.codec, encodes_per_step, longest_);
  }

  [[nodiscard]] BufferNeeds needs() const override {
    if (is_idle()) return {};
    std::size_t payload = setup_.codec->max_payload_bytes(longest_);
    if (setup_.exact != nullptr) {
      payload = std::max(payload, setup_.exact->max_payload_bytes(longest_));
    }
    return {receives_.size() + sends_.size(), kMessageHeaderBytes + payload};
  }

  void post_receives(BufferSet& buffers, std::uint64_t step) override {
    buffers_ = &buffers;
    step_ = step;
    tag_parity_ ^= 1u;
    is_started_ = false;
    is_finite_ = true;
    ranks_started_ = 1;
    sends_under_way_ = arrival_head_ = arrival_count_ = delayed_head_ = delayed_count_ = 0;
    if (is_idle()) return;
    sample_->begin_step(step);
    next_posted_ = next_receive(0);
    next_handled_ = next_posted_;
    next_sent_ = next_send(0);
    std::fill(is_flagged_.begin(), is_flagged_.end(), std::uint8_t{0});
    for (Receive& receive : receives_) receive = {};
    post_more();
    post_start_notice();
  }

  void start() override {
    is_started_ = true;
    if (is_idle()) {
      // One rank: the sum is there already. Only the verdict is to be found.
      is_finite_ = memory().is_finite(setup_.gradient.data(), setup_.gradient.size());
      return;
    }
    notice_ = header(kStartKind, 0);
    for (std::size_t i = 0; i + 1 < ranks_; ++i) {
      const auto to = checked_cast<int>((static_cast<std::size_t>(rank_) + 1 + i) % ranks_);
      DP_CHECK_MPI(MPI_Isend(&notice_, sizeof notice_, MPI_BYTE, to, tag(1),
                             setup_.communicator->handle(), &requests_[notice_request() + 1 + i]));
      stats_.sent_bytes += sizeof notice_;
    }
  }

  bool progress() override {
    if (is_idle()) return false;
    bool has_completed = complete_transfers();
    if (hand_over_due()) has_completed = true;
    if (!is_started_) return has_completed;
    const bool has_acted = send_own() || handle_arrival();
    return has_completed || has_acted;
  }

  [[nodiscard]] bool delivered() const override {
    return is_started_ &&
           (is_idle() || (next_handled_ == plan_.tasks.size() && next_sent_ == plan_.tasks.size()));
  }

  [[nodiscard]] bool done() const override {
    if (!delivered() || ranks_started_ != ranks_) return is_started_ && is_idle();
    if (delayed_count_ > 0) return false;
    for (const MPI_Request request : requests_) {
      if (request != MPI_REQUEST_NULL) return false;
    }
    return true;
  }

  [[nodiscard]] bool finite() const override { return is_finite_; }

  [[nodiscard]] bool waits_for_peer() const override {
    return is_started_ && !is_idle() && ranks_started_ < ranks_ && sends_under_way_ == 0;
  }

  void let_go() override {
    for (; delayed_count_ > 0; --delayed_count_) {
      hand_over(delayed_[delayed_head_]);
      delayed_head_ = (delayed_head_ + 1) % delayed_.size();
    }
  }

  void measure_saturation() override {
    if (sample_) sample_->measure_saturation();
  }

  void put_back_delivered() override {
    if (setup_.residual == nullptr || is_idle()) return;
    for (const PlanTask& task : plan_.tasks) {
      if (task.give != Give::total || task.gives_exact) continue;
      const auto& [begin, size] = plan_.segments[task.segment];
      memory().add(setup_.gradient.data() + begin, setup_.residual + begin, size);
    }
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  enum class State : std::uint8_t { free, posted, arrived, forwarding };
  struct Receive {
    State state = State::free;
    std::size_t bytes = 0;
    double there_s = 0.0;  // not to be taken before, where there is a link model
  };
  struct Send {
    std::size_t under_way = 0;     // to so many targets
    std::size_t forwards = kNone;  // the receive slot whose buffer it sends
  };
  // A message to one target that the link model still carries.
  struct Delayed {
    const std::byte* message = nullptr;
    std::size_t bytes = 0;
    int to = 0;
    std::size_t request = 0;
    double due_s = 0.0;
  };

  [[nodiscard]] bool is_idle() const { return ranks_ < 2 || setup_.gradient.empty(); }
  static bool encodes(const PlanTask& task) {
    return task.give == Give::partial || task.give == Give::total;
  }
  [[nodiscard]] std::size_t next_receive(std::size_t at) const {
    while (at < plan_.tasks.size() && plan_.tasks[at].from == PlanTask::kNobody) ++at;
    return at;
  }
  [[nodiscard]] std::size_t next_send(std::size_t at) const {
    while (at < plan_.tasks.size() && plan_.tasks[at].give == Give::nothing) ++at;
    return at;
  }

  // Requests: receives, sends, the receive of start notices, their sends.
  [[nodiscard]] std::size_t send_request(std::size_t slot) const {
    return receives_.size() + slot * most_targets_;
  }
  [[nodiscard]] std::size_t notice_request() const { return send_request(sends_.size()); }
  [[nodiscard]] std::byte* receive_buffer(std::size_t slot) const { return buffers_->at(slot); }
  [[nodiscard]] std::byte* send_buffer(std::size_t slot) const {
    return buffers_->at(receives_.size() + slot);
  }

  // Messages of one tag arrive from a rank in the order in which it sent them, so a bucket needs
  // one tag, and another for the next exchange, which a fast rank may have begun. It cannot be
  // further ahead: it ends an exchange only with everybody's start notice.
  [[nodiscard]] int tag(std::uint32_t kind) const {
    return stream_tag(setup_.stream, tag_parity_, kind);
  }
  [[nodiscard]] MessageHeader header(std::uint32_t kind, std::uint32_t number) const {
    return {kind, static_cast<std::uint32_t>(step_), setup_.stream, number};
  }
  static std::uint32_t number(std::uint32_t segment, bool is_total) {
    return segment * 2 + (is_total ? 1 : 0);
  }
  [[nodiscard]] const SegmentMemory& memory() const { return setup_.codec->memory(); }
  [[nodiscard]] std::span<float> values(const PlanTask& task) const {
    const auto& [begin, size] = plan_.segments[task.segment];
    return setup_.gradient.subspan(begin, size);
  }
  [[nodiscard]] const Codec& incoming_codec(const PlanTask& task) const {
    return task.takes_exact ? *setup_.exact : *setup_.codec;
  }
  [[nodiscard]] const Codec& outgoing_codec(const PlanTask& task) const {
    return task.gives_exact ? *setup_.exact : *setup_.codec;
  }

  // What a codec does for a task, for the trace.
  [[nodiscard]] TraceEvent slice(TraceKind kind, const PlanTask& task, bool is_total,
                                 std::size_t payload_bytes = 0) const {
    return {.bytes = payload_bytes,
            .step = static_cast<std::uint32_t>(step_),
            .id = setup_.bucket,
            .segment = task.segment,
            .kind = kind,
            .is_total = is_total};
  }

  // Posts receives in the list's order while there are free slots.
  void post_more() {
    for (std::size_t slot = 0; slot < receives_.size() && next_posted_ < plan_.tasks.size();
         ++slot) {
      if (receives_[slot].state != State::free) continue;
      receives_[slot].state = State::posted;
      arrival_order_[(arrival_head_ + arrival_count_++) % arrival_order_.size()] = slot;
      const int from = plan_.tasks[next_posted_].from;
      next_posted_ = next_receive(next_posted_ + 1);
      DP_CHECK_MPI(MPI_Irecv(receive_buffer(slot), checked_cast<int>(buffers_->bytes()), MPI_BYTE,
                             from, tag(0), setup_.communicator->handle(), &requests_[slot]));
    }
  }

  void post_start_notice() {
    DP_CHECK_MPI(MPI_Irecv(&incoming_notice_, sizeof incoming_notice_, MPI_BYTE, MPI_ANY_SOURCE,
                           tag(1), setup_.communicator->handle(), &requests_[notice_request()]));
  }

  // Takes note of the transfers that have ended. Never waits.
  bool complete_transfers() {
    int count = 0;
    const int code = MPI_Testsome(checked_cast<int>(requests_.size()), requests_.data(), &count,
                                  completed_.data(), statuses_.data());
    if (code != MPI_SUCCESS) {
      check_mpi_statuses(code, std::span(statuses_).first(static_cast<std::size_t>(count)),
                         "MPI_Testsome", __FILE__, __LINE__);
    }
    if (count == MPI_UNDEFINED || count == 0) return false;
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(completed_[static_cast<std::size_t>(i)]);
      if (at < receives_.size()) {
        int bytes = 0;
        DP_CHECK_MPI(MPI_Get_count(&statuses_[static_cast<std::size_t>(i)], MPI_BYTE, &bytes));
        receives_[at].bytes = checked_cast<std::size_t>(bytes);
        receives_[at].state = State::arrived;
        if (setup_.link != nullptr) {
          receives_[at].there_s = setup_.link->receive(receives_[at].bytes, now_s());
        }
        stats_.received_bytes += receives_[at].bytes;
      } else if (at < notice_request()) {
        Send& send = sends_[(at - receives_.size()) / most_targets_];
        --sends_under_way_;
        if (--send.under_way == 0 && send.forwards != kNone) {
          receives_[send.forwards].state = State::free;
        }
      } else if (at == notice_request()) {
        check_header(incoming_notice_, header(kStartKind, 0),
                     statuses_[static_cast<std::size_t>(i)].MPI_SOURCE);
        stats_.received_bytes += sizeof incoming_notice_;
        if (++ranks_started_ < ranks_) post_start_notice();
      }
    }
    post_more();
    return true;
  }

  void check_header(const MessageHeader& got, const MessageHeader& want, int from) const {
    if ((got.kind & ~kNotFinite) == want.kind && got.step == want.step &&
        got.stream == want.stream && got.number == want.number) {
      return;
    }
    throw_error(ErrorKind::communication,
                "rank {} got message {} of stream {} in step {} (kind {:08x}) from rank {} where "
                "message {} of stream {} in step {} was due, for bucket {}: all ranks must run the "
                "same version of the program with the same options",
                rank_, got.number, got.stream, got.step, got.kind, from, want.number, want.stream,
                want.step, setup_.bucket);
  }

  // The send slot that is free, or kNone.
  [[nodiscard]] std::size_t free_send_slot() const {
    for (std::size_t slot = 0; slot < sends_.size(); ++slot) {
      if (sends_[slot].under_way == 0) return slot;
    }
    return kNone;
  }

  // Sends the next segment, if that needs nothing from others.
  bool send_own() {
    if (next_sent_ == plan_.tasks.size()) return false;
    const PlanTask& task = plan_.tasks[next_sent_];
    if (task.from != PlanTask::kNobody) return false;
    const std::size_t slot = free_send_slot();
    if (slot == kNone) return false;
    const std::size_t bytes = encode(task, slot, {});
    send(task, slot, kNone, send_buffer(slot), bytes);
    return true;
  }

  // Handles the next message of the list, if it has come and what it leads to can be sent.
  bool handle_arrival() {
    if (next_handled_ == plan_.tasks.size()) return false;
    const PlanTask& task = plan_.tasks[next_handled_];
    const std::size_t slot = arrival_order_[arrival_head_];
    if (receives_[slot].state != State::arrived) return false;
    if (setup_.link != nullptr && now_s() < receives_[slot].there_s) return false;
    const bool leads_on = task.give != Give::nothing;
    const std::size_t send_slot = leads_on ? free_send_slot() : 0;
    if (send_slot == kNone) return false;
    if (leads_on && next_sent_ != next_handled_) return false;  // own segments come first

    std::byte* message = receive_buffer(slot);
    MessageHeader got;
    if (receives_[slot].bytes >= sizeof got) std::memcpy(&got, message, sizeof got);
    check_header(got, header(kSegmentKind, number(task.segment, task.take == Take::total)),
                 task.from);
    if ((got.kind & kNotFinite) != 0) is_flagged_[task.segment] = 1;
    const std::span<const std::byte> payload(message + kMessageHeaderBytes,
                                             receives_[slot].bytes - kMessageHeaderBytes);
    arrival_head_ = (arrival_head_ + 1) % arrival_order_.size();
    --arrival_count_;
    next_handled_ = next_receive(next_handled_ + 1);
    receives_[slot].state = State::free;
    std::size_t encoded_bytes = 0;
    try {
      if (encodes(task)) {
        encoded_bytes = encode(task, send_slot, payload);
      } else if (task.take == Take::partial) {
        add(task, payload);
      } else {
        is_finite_ = is_finite_ && is_flagged_[task.segment] == 0;
        const Stopwatch watch(stats_.decode_s, setup_.trace,
                              slice(TraceKind::decode, task, true, payload.size()));
        incoming_codec(task).decode(payload, values(task));
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::communication) throw;
      throw_error(ErrorKind::communication,
                  "rank {} cannot take what rank {} sent for bucket {} in step {}: {}", rank_,
                  task.from, setup_.bucket, step_, error.what());
    }
    if (encodes(task)) {
      send(task, send_slot, kNone, send_buffer(send_slot), encoded_bytes);
    } else if (leads_on) {
      // As it came: the header is right for those who get it, too.
      receives_[slot].state = State::forwarding;
      send(task, send_slot, slot, message, receives_[slot].bytes);
    }
    post_more();
    return true;
  }

  // Adds a partial sum to this rank's values; the sum is encoded later.
  void add(const PlanTask& task, std::span<const std::byte> received) {
    const Stopwatch watch(stats_.decode_s, setup_.trace,
                          slice(TraceKind::decode, task, false, received.size()));
    const std::span<float> sum = values(task);
    if (task.is_first_sum && !memory().is_finite(sum.data(), sum.size())) {
      is_flagged_[task.segment] = 1;
      incoming_codec(task).decode(received, sum);
    } else {
      incoming_codec(task).decode_add(received, sum);
    }
  }

  // Adds the payload received, if there is one, to this rank's values and writes the message that
  // brings the sum into the send slot's buffer. Returns its length.
  std::size_t encode(const PlanTask& task, std::size_t slot, std::span<const std::byte> received) {
    const bool has_received = task.take == Take::partial;
    std::byte* message = send_buffer(slot);
    const std::span<std::byte> payload(message + kMessageHeaderBytes,
                                       buffers_->bytes() - kMessageHeaderBytes);
    const std::span<float> sum = values(task);
    const std::size_t begin = plan_.segments[task.segment].begin;
    const Codec& codec = outgoing_codec(task);
    const EncodeContext context{.seed = setup_.seed,
                                .step = step_,
                                .bucket = setup_.bucket,
                                .rank = static_cast<std::uint32_t>(rank_),
                                .offset = setup_.offset + begin};
    float* residual =
        setup_.residual == nullptr || task.gives_exact ? nullptr : setup_.residual + begin;
    const bool is_sampled = !task.gives_exact && sample_->is_next();
    // A sample looks at the values between adding and encoding.
    const bool is_one_trip =
        has_received && !is_sampled && codec.is_on_device() && !task.takes_exact;
    if (has_received && !is_one_trip) {
      const Stopwatch watch(stats_.decode_s, setup_.trace,
                            slice(TraceKind::decode, task, false, received.size()));
      incoming_codec(task).decode_add(received, sum);
    }
    EncodeResult result;
    bool is_flagged = false;
    {
      Stopwatch watch(stats_.encode_s, setup_.trace,
                      slice(TraceKind::encode, task, task.give == Give::total));
      if (is_sampled) sample_->before(sum, residual);
      result = is_one_trip ? codec.decode_add_encode(received, sum, residual, payload, context)
                           : codec.encode(sum, residual, payload, context);
      if (!result.finite) {
        is_flagged_[task.segment] = 1;
        if (has_received && task.is_first_sum) {
          incoming_codec(task).decode(received, sum);
          result = codec.encode(sum, residual, payload, context);
        }
      }
      is_flagged = is_flagged_[task.segment] != 0;
      if (is_sampled && !is_flagged) {
        sample_->after(sum, residual, payload.first(result.payload_bytes), stats_.sampled);
      }
      watch.set_bytes(result.payload_bytes);
    }
    const auto encoded = payload.first(result.payload_bytes);
    if (task.give == Give::total) {
      // From here on this rank holds what all others will decode.
      is_finite_ = is_finite_ && !is_flagged;
      if (!codec.is_lossless() || !result.finite) {
        const Stopwatch watch(stats_.decode_s, setup_.trace,
                              slice(TraceKind::decode, task, true, encoded.size()));
        codec.decode(encoded, sum);
      }
    }
    const MessageHeader h = header(kSegmentKind | (is_flagged ? kNotFinite : 0),
                                   number(task.segment, task.give == Give::total));
    std::memcpy(message, &h, sizeof h);
    return kMessageHeaderBytes + encoded.size();
  }

  void send(const PlanTask& task, std::size_t slot, std::size_t forwards, const std::byte* message,
            std::size_t bytes) {
    sends_[slot] = {.under_way = task.target_count, .forwards = forwards};
    std::size_t request = send_request(slot);
    for (const int to : plan_.targets_of(task)) {
      Delayed sent{.message = message, .bytes = bytes, .to = to, .request = request++};
      stats_.sent_bytes += bytes;
      ++sends_under_way_;
      if (setup_.link == nullptr) {
        hand_over(sent);
        continue;
      }
      sent.due_s = setup_.link->transmit(bytes, now_s());
      delayed_[(delayed_head_ + delayed_count_++) % delayed_.size()] = sent;
    }
    next_sent_ = next_send(next_sent_ + 1);
  }

  void hand_over(const Delayed& sent) {
    DP_CHECK_MPI(MPI_Isend(sent.message, checked_cast<int>(sent.bytes), MPI_BYTE, sent.to, tag(0),
                           setup_.communicator->handle(), &requests_[sent.request]));
  }

  // Hands over what the link model has carried. They are due in the order in which they were sent.
  bool hand_over_due() {
    bool has_moved = false;
    for (; delayed_count_ > 0 && now_s() >= delayed_[delayed_head_].due_s; --delayed_count_) {
      hand_over(delayed_[delayed_head_]);
      delayed_head_ = (delayed_head_ + 1) % delayed_.size();
      has_moved = true;
    }
    return has_moved;
  }
  static double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  ExchangeSetup setup_;
  ExchangePlan plan_;
  int rank_;
  std::size_t ranks_;
  std::size_t longest_ = 0;       // of the segments
  std::size_t most_targets_ = 1;  // of a message
  std::unique_ptr<Codec> own_exact_;
  BufferSet* buffers_ = nullptr;
  std::uint64_t step_ = 0;
  std::uint32_t tag_parity_ = 0;
  bool is_started_ = false;
  bool is_finite_ = true;
  std::size_t ranks_started_ = 1;

  std::size_t next_posted_ = 0;   // the task whose receive is to be posted next
  std::size_t next_handled_ = 0;  // ... whose message is to be handled next
  std::size_t next_sent_ = 0;     // ... whose message is to be sent next
  std::vector<Receive> receives_;
  std::vector<Send> sends_;
  std::vector<std::size_t> arrival_order_;  // a queue of posted and arrived receive slots
  std::size_t arrival_head_ = 0, arrival_count_ = 0;
  std::size_t sends_under_way_ = 0;
  std::vector<Delayed> delayed_;  // a queue
  std::size_t delayed_head_ = 0, delayed_count_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<int> completed_;
  std::vector<MPI_Status> statuses_;
  MessageHeader notice_, incoming_notice_;
  std::vector<std::uint8_t> is_flagged_;  // by segment: somebody's input was not finite

  std::optional<EncodeSample> sample_;  // none where nothing is exchanged
};

}  // namespace

std::uint64_t chunk_wire_bytes(const ExchangeShape& shape, std::size_t chunk, const Codec& codec) {
  std::uint64_t bytes = 0;
  for (std::size_t at = 0; at < shape.segments(); ++at) {
    const std::size_t n = shape.segment_size(chunk, at);
    if (n == 0) continue;
    const auto payload = codec.fixed_payload_bytes(n);
    DP_ASSERT(payload.has_value(), "{} has payloads of varying size", codec.spec().name);
    bytes += kMessageHeaderBytes + *payload;
  }
  return bytes;
}

ExchangeShape shape_of(const ExchangeSetup& setup) {
  return {setup.gradient.size(), static_cast<std::size_t>(setup.communicator->size()),
          setup.segment};
}

std::unique_ptr<Exchange> make_segment_exchange(const ExchangeSetup& setup, ExchangePlan plan) {
  return std::make_unique<SegmentExchange>(setup, std::move(plan));
}

}  // namespace dp
