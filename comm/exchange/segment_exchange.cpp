// Outline: a list of tasks and three positions in it. The first is the next receive to post, the
// second the next message to handle, the third the next message to send. progress() takes note of
// ended transfers, posts receives into free buffers, and then does at most one task: it sends a
// segment that needs nothing from others, or it handles the next message of the list if that has
// come. To handle a message is to decode and add it or to assign it, and to encode the sum or
// forward the message if the task says so. The exchange has delivered when the last two positions
// are at the list's end, and is done when also all transfers have ended and all ranks have started.
#include "comm/exchange/segment_exchange.hpp"

#include <cstring>
#include <utility>
#include <vector>

#include "comm/exchange/rate_notes.hpp"
#include "comm/exchange/segment_coder.hpp"
#include "comm/mpi/tags.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::uint32_t kSegmentKind = 0x44500001u;
constexpr std::uint32_t kStartKind = 0x44500002u;
constexpr std::uint32_t kNotFinite = 0x100u;
constexpr std::uint32_t kStopWished = 0x200u;

struct MessageHeader {
  std::uint32_t kind = 0;
  std::uint32_t step = 0;
  std::uint32_t stream = 0;
  std::uint32_t number = 0;
};
static_assert(sizeof(MessageHeader) == kMessageHeaderBytes);

class SegmentExchange final : public Exchange {
 public:
  SegmentExchange(const ExchangeSetup& setup, ExchangePlan plan)
      : setup_(setup),
        plan_(std::move(plan)),
        rank_(setup.transport->rank()),
        ranks_(static_cast<std::size_t>(setup.transport->size())),
        coder_(setup, plan_, stats_),
        notes_(setup.rate, plan_) {
    DP_ASSERT(setup.window > 0 && setup.segment > 0, "window {}, segment {}", setup.window,
              setup.segment);
    DP_ASSERT(setup.segment % setup.codec->block() == 0, "segment {} and block {}", setup.segment,
              setup.codec->block());
    if (is_idle()) return;
    for (const PlanTask& task : plan_.tasks) {
      most_targets_ = std::max<std::size_t>(most_targets_, task.target_count);
    }
    receives_.resize(2 * setup.window);
    sends_.resize(setup.window);
    arrival_order_.resize(receives_.size());
    channel_ = setup.transport->open(notice_slot() + 1 + (ranks_ - 1));
  }

  [[nodiscard]] BufferNeeds needs() const override {
    if (is_idle()) return {};
    return {receives_.size() + sends_.size(), frame_bytes() + coder_.max_payload_bytes()};
  }

  void post_receives(BufferSet& buffers, std::uint64_t step) override {
    buffers_ = &buffers;
    step_ = step;
    tag_parity_ ^= 1u;
    is_started_ = stop_is_wished_ = false;
    ranks_started_ = 1;
    under_way_ = sends_under_way_ = arrival_head_ = arrival_count_ = 0;
    coder_.begin_step(step);
    notes_.begin_step();
    if (is_idle()) return;
    next_posted_ = next_receive(0);
    next_handled_ = next_posted_;
    next_sent_ = next_send(0);
    for (Receive& receive : receives_) receive = {};
    post_more();
    post_start_notice();
  }

  void start() override {
    is_started_ = true;
    if (is_idle()) {
      coder_.judge_own_values();
      return;
    }
    notice_ = Sealed(header(kStartKind, 0));
    for (std::size_t i = 0; i + 1 < ranks_; ++i) {
      const auto to = checked_cast<int>((static_cast<std::size_t>(rank_) + 1 + i) % ranks_);
      channel_->send_notice(notice_slot() + 1 + i, std::as_const(notice_).bytes(), to, tag(1));
      ++under_way_;
      stats_.sent_bytes += kMessageFrameBytes;
    }
  }

  bool progress() override {
    if (is_idle()) return false;
    const bool has_ended = take_note_of_ended();
    if (!is_started_) return has_ended;
    const bool has_acted = send_own() || handle_arrival();
    return has_ended || has_acted;
  }

  [[nodiscard]] bool delivered() const override {
    return is_started_ &&
           (is_idle() || (next_handled_ == plan_.tasks.size() && next_sent_ == plan_.tasks.size()));
  }

  [[nodiscard]] bool done() const override {
    return delivered() && (is_idle() || (ranks_started_ == ranks_ && under_way_ == 0));
  }

  [[nodiscard]] bool finite() const override { return coder_.is_finite(); }
  [[nodiscard]] std::size_t first_not_finite() const override { return coder_.first_not_finite(); }
  [[nodiscard]] ClampedValues clamped() const override { return coder_.clamped(); }
  [[nodiscard]] bool stop_is_wished() const override { return stop_is_wished_; }

  [[nodiscard]] RateTally rate_tally() const override {
    RateTally tally = notes_.tally();
    tally.own_squares = coder_.squares();
    return tally;
  }

  [[nodiscard]] bool waits_for_peer() const override {
    return is_started_ && !is_idle() && ranks_started_ < ranks_ && sends_under_way_ == 0;
  }

  void let_go() override {
    if (!is_idle()) channel_->let_go();
  }

  void measure_saturation() override { coder_.measure_saturation(); }
  void list_state(const std::string& prefix, StateVisitor& visitor) override {
    coder_.list_state(prefix, visitor);
  }

  void put_back_delivered() override {
    if (!is_idle()) coder_.put_back_delivered();
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  enum class State : std::uint8_t { free, posted, arrived, forwarding };
  struct Receive {
    State state = State::free;
    std::size_t bytes = 0;
  };
  struct Send {
    std::size_t under_way = 0;     // the number of targets
    std::size_t forwards = kNone;  // the receive slot whose buffer it sends
  };

  [[nodiscard]] std::size_t head_bytes() const { return kMessageHeaderBytes + notes_.bytes(); }
  [[nodiscard]] std::size_t frame_bytes() const { return head_bytes() + kSealBytes; }
  [[nodiscard]] bool is_idle() const { return ranks_ < 2 || setup_.gradient.empty(); }
  [[nodiscard]] std::size_t next_receive(std::size_t at) const {
    while (at < plan_.tasks.size() && !plan_.tasks[at].takes()) ++at;
    return at;
  }
  [[nodiscard]] std::size_t next_send(std::size_t at) const {
    while (at < plan_.tasks.size() && !plan_.tasks[at].gives()) ++at;
    return at;
  }

  // The channel's slots: receives, sends to each of a message's targets, the receive of start
  // notices, their sends.
  [[nodiscard]] std::size_t send_slot(std::size_t send) const {
    return receives_.size() + send * most_targets_;
  }
  [[nodiscard]] std::size_t notice_slot() const { return send_slot(sends_.size()); }
  [[nodiscard]] std::span<std::byte> receive_buffer(std::size_t receive) const {
    return {buffers_->at(receive), buffers_->bytes()};
  }
  [[nodiscard]] std::span<std::byte> send_buffer(std::size_t send) const {
    return {buffers_->at(receives_.size() + send), buffers_->bytes()};
  }

  // Messages of one tag arrive from a rank in the order in which it sent them, so an exchange needs
  // one tag, and the next one, which a fast rank may have begun, needs another. No rank can be
  // further ahead, because it ends an exchange only when it has all start notices.
  [[nodiscard]] int tag(std::uint32_t kind) const {
    return stream_tag(setup_.stream, tag_parity_, kind);
  }
  [[nodiscard]] MessageHeader header(std::uint32_t kind, std::uint32_t number) const {
    return {kind, static_cast<std::uint32_t>(step_), setup_.stream, number};
  }
  static std::uint32_t number(std::uint32_t segment, bool is_total) {
    return segment * 2 + (is_total ? 1 : 0);
  }

  // Posts receives in the list's order while there are free buffers.
  void post_more() {
    for (std::size_t at = 0; at < receives_.size() && next_posted_ < plan_.tasks.size(); ++at) {
      if (receives_[at].state != State::free) continue;
      receives_[at].state = State::posted;
      arrival_order_[(arrival_head_ + arrival_count_++) % arrival_order_.size()] = at;
      channel_->receive(at, receive_buffer(at), plan_.tasks[next_posted_].from, tag(0));
      ++under_way_;
      next_posted_ = next_receive(next_posted_ + 1);
    }
  }

  void post_start_notice() {
    incoming_notice_ = {};
    channel_->receive_notice(notice_slot(), incoming_notice_.bytes(), tag(1));
    ++under_way_;
  }

  // Updates the state for all transfers that have ended. Never waits.
  bool take_note_of_ended() {
    const std::span<const Completion> all = channel_->poll();
    if (all.empty()) return false;
    under_way_ -= all.size();
    for (const Completion& ended : all) {
      if (ended.slot < receives_.size()) {
        receives_[ended.slot] = {.state = State::arrived, .bytes = ended.bytes};
        stats_.received_bytes += ended.bytes;
      } else if (ended.slot < notice_slot()) {
        Send& send = sends_[(ended.slot - receives_.size()) / most_targets_];
        --sends_under_way_;
        if (--send.under_way == 0 && send.forwards != kNone) {
          receives_[send.forwards].state = State::free;
        }
      } else if (ended.slot == notice_slot()) {
        check_header(read_header(incoming_notice_.bytes().first(ended.bytes), 0, ended.from),
                     header(kStartKind, 0), ended.from);
        stats_.received_bytes += kMessageFrameBytes;
        if (++ranks_started_ < ranks_) post_start_notice();
      }
    }
    post_more();
    return true;
  }

  // The header of a message that is as it was sent; zeros if it is too short for a rate note.
  [[nodiscard]] MessageHeader read_header(std::span<const std::byte> message,
                                          std::size_t note_bytes, int from) const {
    setup_.transport->check_seal(message, from, [&] {
      return fmt::format("a message of bucket {} in step {}", setup_.bucket, step_);
    });
    MessageHeader got;
    if (message.size() >= kMessageFrameBytes + note_bytes) {
      std::memcpy(&got, message.data(), sizeof got);
    }
    return got;
  }

  void check_header(const MessageHeader& got, const MessageHeader& want, int from) const {
    const bool is_of_kind = (got.kind & ~(kNotFinite | kStopWished)) == want.kind;
    if (is_of_kind && got.step == want.step && got.stream == want.stream &&
        got.number == want.number) {
      return;
    }
    if (is_of_kind && got.stream == want.stream && got.step != want.step) {
      const bool is_first = rank_ < from;
      throw_error(ErrorKind::data,
                  "rank {} goes on from step {}, rank {} from step {}: every rank must load the "
                  "state that it has saved at the same step, or none of them",
                  is_first ? rank_ : from, is_first ? want.step : got.step, is_first ? from : rank_,
                  is_first ? got.step : want.step);
    }
    throw_error(ErrorKind::communication,
                "rank {} got message {} of stream {} in step {} (kind {:08x}) from rank {} where "
                "message {} of stream {} in step {} was due, for bucket {}: all ranks must run the "
                "same version of the program with the same options",
                rank_, got.number, got.stream, got.step, got.kind, from, want.number, want.stream,
                want.step, setup_.bucket);
  }

  // A free place in sends_, or kNone.
  [[nodiscard]] std::size_t free_send() const {
    for (std::size_t at = 0; at < sends_.size(); ++at) {
      if (sends_[at].under_way == 0) return at;
    }
    return kNone;
  }

  // Sends the next segment if it needs nothing from others.
  bool send_own() {
    if (next_sent_ == plan_.tasks.size()) return false;
    const PlanTask& task = plan_.tasks[next_sent_];
    if (task.takes()) return false;
    const std::size_t at = free_send();
    if (at == kNone) return false;
    send(task, at, kNone, write_message(task, at, {}));
    return true;
  }

  // Handles the next message of the list, if it has come and the message that follows from it can
  // be sent.
  bool handle_arrival() {
    if (next_handled_ == plan_.tasks.size()) return false;
    const PlanTask& task = plan_.tasks[next_handled_];
    const std::size_t slot = arrival_order_[arrival_head_];
    if (receives_[slot].state != State::arrived) return false;
    const std::size_t send_at = task.gives() ? free_send() : 0;
    if (send_at == kNone) return false;
    if (task.gives() && next_sent_ != next_handled_) return false;  // own segments come first

    const std::span<const std::byte> message = receive_buffer(slot).first(receives_[slot].bytes);
    const MessageHeader got = read_header(message, notes_.bytes(), task.from);
    check_header(got,
                 header(kSegmentKind, number(task.segment, task.take == PlanTask::Take::total)),
                 task.from);
    if ((got.kind & kNotFinite) != 0) coder_.flag(task.segment);
    if ((got.kind & kStopWished) != 0) stop_is_wished_ = true;
    arrival_head_ = (arrival_head_ + 1) % arrival_order_.size();
    --arrival_count_;
    next_handled_ = next_receive(next_handled_ + 1);
    receives_[slot].state = State::free;
    const std::span<const std::byte> sent = handle_payload(task, send_at, message);
    if (task.encodes()) {
      send(task, send_at, kNone, sent);
    } else if (task.gives()) {
      // As it came: its header and its seal are also right for the ranks that get it.
      receives_[slot].state = State::forwarding;
      send(task, send_at, slot, message);
    }
    post_more();
    return true;
  }

  // Adds the message's payload to this rank's values or assigns it. Returns the message that the
  // task encodes, in the buffer of that send; empty if it encodes none.
  std::span<const std::byte> handle_payload(const PlanTask& task, std::size_t send_at,
                                            std::span<const std::byte> message) {
    const auto payload = message.subspan(head_bytes(), message.size() - frame_bytes());
    notes_.take(task, message.data() + kMessageHeaderBytes, payload.size());
    try {
      if (task.encodes()) return write_message(task, send_at, payload);
      if (task.take == PlanTask::Take::partial) {
        coder_.add(task, payload);
      } else {
        coder_.assign_total(task, payload);
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::communication) throw;
      throw_error(ErrorKind::communication,
                  "rank {} cannot take what rank {} sent for bucket {} in step {}: {}", rank_,
                  task.from, setup_.bucket, step_, error.what());
    }
    return {};
  }

  // Writes a message into the buffer of that send: the sum of this rank's values and of the payload
  // received, if there is one.
  std::span<const std::byte> write_message(const PlanTask& task, std::size_t send_at,
                                           std::span<const std::byte> received) {
    const std::span<std::byte> buffer = send_buffer(send_at);
    const std::size_t bytes = coder_.add_and_encode(task, received, buffer.subspan(head_bytes()));
    const std::span<std::byte> message = buffer.first(frame_bytes() + bytes);
    if (setup_.stop_wish != nullptr && *setup_.stop_wish) stop_is_wished_ = true;
    const std::uint32_t flags =
        (coder_.is_flagged(task.segment) ? kNotFinite : 0) | (stop_is_wished_ ? kStopWished : 0);
    const MessageHeader h =
        header(kSegmentKind | flags, number(task.segment, task.give == PlanTask::Give::total));
    std::memcpy(message.data(), &h, sizeof h);
    notes_.write(task, message.data() + kMessageHeaderBytes, bytes);
    seal(message);
    return message;
  }

  void send(const PlanTask& task, std::size_t at, std::size_t forwards,
            std::span<const std::byte> message) {
    sends_[at] = {.under_way = task.target_count, .forwards = forwards};
    std::size_t slot = send_slot(at);
    for (const int to : plan_.targets_of(task)) {
      channel_->send(slot++, message, to, tag(0));
      stats_.sent_bytes += message.size();
      ++sends_under_way_;
      ++under_way_;
    }
    next_sent_ = next_send(next_sent_ + 1);
  }

  ExchangeSetup setup_;
  ExchangePlan plan_;
  int rank_;
  std::size_t ranks_;
  SegmentCoder coder_;
  RateNotes notes_;
  std::unique_ptr<Channel> channel_;  // null if nothing is exchanged
  std::size_t most_targets_ = 1;      // of a message
  BufferSet* buffers_ = nullptr;
  std::uint64_t step_ = 0;
  std::uint32_t tag_parity_ = 0;
  bool is_started_ = false;
  bool stop_is_wished_ = false;  // by some rank, as far as this one knows
  std::size_t ranks_started_ = 1;

  std::size_t next_posted_ = 0;   // the task whose receive is to be posted next
  std::size_t next_handled_ = 0;  // ... whose message is to be handled next
  std::size_t next_sent_ = 0;     // ... whose message is to be sent next
  std::vector<Receive> receives_;
  std::vector<Send> sends_;
  std::vector<std::size_t> arrival_order_;  // a queue of posted and arrived receives
  std::size_t arrival_head_ = 0, arrival_count_ = 0;
  std::size_t sends_under_way_ = 0;  // of segments
  std::size_t under_way_ = 0;        // all transfers
  Sealed<MessageHeader> notice_, incoming_notice_;
};

}  // namespace

std::unique_ptr<Exchange> make_segment_exchange(const ExchangeSetup& setup, ExchangePlan plan) {
  return std::make_unique<SegmentExchange>(setup, std::move(plan));
}

}  // namespace dp
