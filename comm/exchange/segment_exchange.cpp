// Outline: a list of tasks and three positions in it. The first is the next receive to post, the
// second the next message to handle, the third the next message to send. progress() handles ended
// transfers, posts receives into free buffers, and then does one of two things: it sends segments
// that need nothing from others (one, or several if codecs have threads), or it handles the next
// message of the list if that has arrived. Handling a message means to add or assign its payload,
// and then, if the task says so, to encode the sum or forward the message. The exchange has
// delivered when the last two positions are at the list's end. It is done when, in addition, all
// transfers have ended and all partners have started.
#include "comm/exchange/segment_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "comm/exchange/message_header.hpp"
#include "comm/exchange/message_slots.hpp"
#include "comm/exchange/rate_notes.hpp"
#include "comm/exchange/segment_coder.hpp"
#include "comm/mpi/tags.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::size_t kMostAtOnce = SegmentCoder::kMostAtOnce;

class SegmentExchange final : public Exchange {
 public:
  SegmentExchange(const ExchangeSetup& setup, ExchangePlan plan);

  [[nodiscard]] BufferNeeds needs() const override {
    if (is_idle()) return {};
    return {slots_->buffers(), frame_bytes() + coder_.max_payload_bytes()};
  }
  void post_receives(BufferSet& buffers, std::uint64_t step) override;
  void start() override;
  bool progress() override;

  [[nodiscard]] bool delivered() const override {
    return is_started_ &&
           (is_idle() || (next_handled_ == plan_.tasks.size() && next_sent_ == plan_.tasks.size()));
  }
  [[nodiscard]] bool done() const override {
    return delivered() &&
           (is_idle() ||
            ((!sends_notices() || partners_started_ == partners_.size()) && slots_->has_ended()));
  }
  [[nodiscard]] bool waits_for_peer() const override {
    return is_started_ && !is_idle() && partners_started_ < partners_.size() &&
           !slots_->is_sending();
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

  void let_go() override {
    if (!is_idle()) slots_->let_go();
  }
  void measure_saturation() override { coder_.measure_saturation(); }
  void list_state(const std::string& prefix, StateVisitor& visitor) override {
    coder_.list_state(prefix, visitor);
  }
  void put_back_delivered() override {
    if (!is_idle()) coder_.put_back_delivered();
  }

 private:
  [[nodiscard]] std::size_t head_bytes() const { return kMessageHeaderBytes + notes_.bytes(); }
  [[nodiscard]] std::size_t frame_bytes() const { return head_bytes() + kSealBytes; }
  [[nodiscard]] bool is_idle() const { return !slots_; }
  [[nodiscard]] bool sends_notices() const { return plan_.notices != ExchangePlan::Notices::none; }
  [[nodiscard]] std::size_t next_receive(std::size_t at) const {
    while (at < plan_.tasks.size() && !plan_.tasks[at].takes()) ++at;
    return at;
  }
  [[nodiscard]] std::size_t next_send(std::size_t at) const {
    while (at < plan_.tasks.size() && !plan_.tasks[at].gives()) ++at;
    return at;
  }

  // Messages with the same tag arrive from a rank in the order in which that rank sent them, so one
  // tag per exchange is enough. A fast rank may already be in the next exchange, so that exchange
  // has another tag. No rank can be two exchanges ahead: a rank ends an exchange only when all
  // ranks have started it (ExchangePlan::Notices).
  [[nodiscard]] int tag(std::uint32_t kind) const {
    return stream_tag(setup_.stream, tag_parity_, kind);
  }
  [[nodiscard]] MessageHeader header(std::uint32_t kind, std::uint32_t number) const {
    return {kind, static_cast<std::uint32_t>(step_), setup_.stream, number};
  }
  [[nodiscard]] MessageHeader read_header(std::span<const std::byte> message,
                                          std::size_t note_bytes, int from) const;
  void check_header(const MessageHeader& got, const MessageHeader& want, int from) const;

  void post_more();
  void post_start_notice();
  void hear_of(int partner);
  bool take_note_of_ended();
  bool send_own();
  bool handle_arrival();
  std::span<const std::byte> handle_payload(const PlanTask& task, std::size_t send_at,
                                            std::span<const std::byte> message);
  std::span<const std::byte> write_message(const PlanTask& task, std::size_t send_at,
                                           std::span<const std::byte> received);
  std::span<const std::byte> frame_message(const PlanTask& task, std::size_t send_at,
                                           std::size_t bytes);

  ExchangeSetup setup_;
  ExchangePlan plan_;
  int rank_;
  std::vector<int> partners_;  // the ranks that exchange notices or messages with this one
  SegmentCoder coder_;
  RateNotes notes_;
  std::uint64_t step_ = 0;
  std::uint32_t tag_parity_ = 0;
  bool is_started_ = false;
  bool stop_is_wished_ = false;   // some rank wishes to stop, as far as this rank knows
  std::size_t most_at_once_ = 1;  // segments that are encoded together
  std::size_t partners_started_ = 0;
  std::vector<bool> has_heard_of_;  // by rank; only if there are no notices
  std::size_t next_posted_ = 0;     // the task whose receive is to be posted next
  std::size_t next_handled_ = 0;    // ... whose message is to be handled next
  std::size_t next_sent_ = 0;       // ... whose message is to be sent next
  Sealed<MessageHeader> notice_, incoming_notice_;
  std::optional<MessageSlots> slots_;  // empty if nothing is exchanged
};

// The plan's partners, or all other ranks, beginning with the next rank.
std::vector<int> partners_in(const ExchangePlan& plan, int rank, int ranks) {
  if (plan.notices != ExchangePlan::Notices::to_all) return plan.partners();
  std::vector<int> others;
  for (int shift = 1; shift < ranks; ++shift) others.push_back((rank + shift) % ranks);
  return others;
}

SegmentExchange::SegmentExchange(const ExchangeSetup& setup, ExchangePlan plan)
    : setup_(setup),
      plan_(std::move(plan)),
      rank_(setup.transport->rank()),
      partners_(partners_in(plan_, setup.transport->rank(), setup.transport->size())),
      coder_(setup, plan_, stats_),
      notes_(setup.rate, plan_),
      has_heard_of_(sends_notices() ? 0 : static_cast<std::size_t>(setup.transport->size())) {
  DP_ASSERT(setup.window > 0 && setup.segment > 0, "window {}, segment {}", setup.window,
            setup.segment);
  DP_ASSERT(setup.segment % setup.codec->block() == 0, "segment {} and block {}", setup.segment,
            setup.codec->block());
  if (setup.threads != nullptr && !setup.codec->is_on_device()) {
    most_at_once_ = SegmentCoder::kSegmentsAThread * setup.threads->size();
  }
  if (partners_.empty() || setup_.gradient.empty()) return;
  std::size_t most_targets = 1;
  for (const PlanTask& task : plan_.tasks) {
    most_targets = std::max<std::size_t>(most_targets, task.target_count);
  }
  slots_.emplace(*setup.transport, setup.window, most_targets, stats_);
}

void SegmentExchange::post_receives(BufferSet& buffers, std::uint64_t step) {
  step_ = step;
  tag_parity_ ^= 1u;
  is_started_ = stop_is_wished_ = false;
  partners_started_ = 0;
  has_heard_of_.assign(has_heard_of_.size(), false);
  coder_.begin_step(step);
  notes_.begin_step();
  if (is_idle()) return;
  slots_->begin_step(buffers);
  next_posted_ = next_receive(0);
  next_handled_ = next_posted_;
  next_sent_ = next_send(0);
  post_more();
  if (sends_notices()) post_start_notice();
}

void SegmentExchange::start() {
  is_started_ = true;
  if (is_idle()) {
    coder_.judge_own_values();
    return;
  }
  if (!sends_notices()) return;
  notice_ = Sealed(header(MessageHeader::kStart, 0));
  slots_->send_notices(std::as_const(notice_).bytes(), partners_, tag(1));
}

bool SegmentExchange::progress() {
  if (is_idle()) return false;
  const bool has_ended = take_note_of_ended();
  if (!is_started_) return has_ended;
  const bool has_acted = send_own() || handle_arrival();
  return has_ended || has_acted;
}

// Posts receives in the list's order while there are free buffers.
void SegmentExchange::post_more() {
  std::size_t at = 0;
  while (next_posted_ < plan_.tasks.size() &&
         (at = slots_->free_receive(at)) != MessageSlots::kNone) {
    slots_->post(at, plan_.tasks[next_posted_].from, tag(0));
    next_posted_ = next_receive(next_posted_ + 1);
  }
}

void SegmentExchange::post_start_notice() {
  incoming_notice_ = {};
  slots_->post_notice(incoming_notice_.bytes(), tag(1));
}

void SegmentExchange::hear_of(int partner) {
  const auto at = static_cast<std::size_t>(partner);
  if (!has_heard_of_[at]) ++partners_started_;
  has_heard_of_[at] = true;
}

// Updates the state for all transfers that have ended. Never waits.
bool SegmentExchange::take_note_of_ended() {
  const bool has_ended = slots_->poll([this](std::size_t bytes, int from) {
    check_header(read_header(incoming_notice_.bytes().first(bytes), 0, from),
                 header(MessageHeader::kStart, 0), from);
    if (++partners_started_ < partners_.size()) post_start_notice();
  });
  if (has_ended) post_more();
  return has_ended;
}

// Checks the seal and returns the header; zeros if the message is too short for header and rate
// note.
MessageHeader SegmentExchange::read_header(std::span<const std::byte> message,
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

void SegmentExchange::check_header(const MessageHeader& got, const MessageHeader& want,
                                   int from) const {
  if (got.is(want)) return;
  if (got.has_kind_of(want) && got.stream == want.stream && got.step != want.step) {
    const bool is_first = rank_ < from;
    throw_error(ErrorKind::data,
                "rank {} continues from step {}, but rank {} from step {}: every rank must load "
                "its state of the same step, or no rank may load a state",
                is_first ? rank_ : from, is_first ? want.step : got.step, is_first ? from : rank_,
                is_first ? got.step : want.step);
  }
  throw_error(ErrorKind::communication,
              "rank {} received message {} of stream {} in step {} (kind {:08x}) from rank {}, but "
              "expected message {} of stream {} in step {}, for bucket {}: all ranks must run the "
              "same version of the program with the same options",
              rank_, got.number, got.stream, got.step, got.kind, from, want.number, want.stream,
              want.step, setup_.bucket);
}

// Sends the next segment if it needs nothing from other ranks. If codecs have threads, sends
// several such segments.
bool SegmentExchange::send_own() {
  if (next_sent_ == plan_.tasks.size()) return false;
  std::array<const PlanTask*, kMostAtOnce> tasks = {};
  std::array<std::size_t, kMostAtOnce> slots = {};
  std::size_t count = 0;
  for (std::size_t at = next_sent_, slot = 0; count < most_at_once_; at = next_send(at + 1)) {
    if (at == plan_.tasks.size() || plan_.tasks[at].takes()) break;
    slot = slots_->free_send(slot);
    if (slot == MessageSlots::kNone) break;
    tasks[count] = &plan_.tasks[at];
    slots[count++] = slot++;
  }
  if (count == 0) return false;
  std::array<std::span<std::byte>, kMostAtOnce> payloads = {};
  for (std::size_t i = 0; i < count; ++i) {
    payloads[i] = slots_->send_buffer(slots[i]).subspan(head_bytes());
  }
  if (count == 1) {
    payloads[0] = payloads[0].first(coder_.add_and_encode(*tasks[0], {}, payloads[0]));
  } else {
    coder_.encode_own(std::span(tasks).first(count), std::span(payloads).first(count));
  }
  for (std::size_t i = 0; i < count; ++i) {
    slots_->send(slots[i], frame_message(*tasks[i], slots[i], payloads[i].size()),
                 plan_.targets_of(*tasks[i]), tag(0));
    next_sent_ = next_send(next_sent_ + 1);
  }
  return true;
}

// Handles the next message of the list, if it has arrived and the message that follows from it can
// be sent.
bool SegmentExchange::handle_arrival() {
  if (next_handled_ == plan_.tasks.size()) return false;
  const PlanTask& task = plan_.tasks[next_handled_];
  if (!slots_->has_come()) return false;
  const std::size_t send_at = task.gives() ? slots_->free_send() : 0;
  if (send_at == MessageSlots::kNone) return false;
  if (task.gives() && next_sent_ != next_handled_) return false;  // earlier sends come first

  const std::span<const std::byte> message = slots_->next();
  const MessageHeader got = read_header(message, notes_.bytes(), task.from);
  const bool is_total = task.take == PlanTask::Take::total;
  check_header(got,
               header(MessageHeader::kSegment, MessageHeader::number_of(task.segment, is_total)),
               task.from);
  if (got.has(MessageHeader::kNotFinite)) coder_.flag(task.segment);
  if (got.has(MessageHeader::kStopWished)) stop_is_wished_ = true;
  if (!sends_notices()) hear_of(task.from);
  const std::size_t receive = slots_->take();
  next_handled_ = next_receive(next_handled_ + 1);
  const std::span<const std::byte> sent = handle_payload(task, send_at, message);
  if (task.gives()) {
    if (task.encodes()) {
      slots_->send(send_at, sent, plan_.targets_of(task), tag(0));
    } else {
      // Forwarded unchanged: its header and seal are valid for the next receivers, too.
      slots_->forward(send_at, receive, message, plan_.targets_of(task), tag(0));
    }
    next_sent_ = next_send(next_sent_ + 1);
  }
  post_more();
  return true;
}

// Adds the message's payload to this rank's values, or assigns it. If the task encodes, returns the
// new message, which lies in the buffer of send `send_at`; otherwise returns an empty span.
std::span<const std::byte> SegmentExchange::handle_payload(const PlanTask& task,
                                                           std::size_t send_at,
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
                "rank {} cannot decode rank {}'s message of bucket {} in step {}: {}", rank_,
                task.from, setup_.bucket, step_, error.what());
  }
  return {};
}

// Encodes the sum of this rank's values and the received payload (may be empty) into the buffer of
// send `send_at`. Returns the message.
std::span<const std::byte> SegmentExchange::write_message(const PlanTask& task, std::size_t send_at,
                                                          std::span<const std::byte> received) {
  const std::span<std::byte> buffer = slots_->send_buffer(send_at);
  return frame_message(task, send_at,
                       coder_.add_and_encode(task, received, buffer.subspan(head_bytes())));
}

// Writes header, note and seal around the payload in the buffer of send `send_at`. Returns the
// message.
std::span<const std::byte> SegmentExchange::frame_message(const PlanTask& task, std::size_t send_at,
                                                          std::size_t bytes) {
  const std::span<std::byte> message = slots_->send_buffer(send_at).first(frame_bytes() + bytes);
  if (setup_.stop_wish != nullptr && *setup_.stop_wish) stop_is_wished_ = true;
  const std::uint32_t flags = (coder_.is_flagged(task.segment) ? MessageHeader::kNotFinite : 0) |
                              (stop_is_wished_ ? MessageHeader::kStopWished : 0);
  const bool is_total = task.give == PlanTask::Give::total;
  const MessageHeader h =
      header(MessageHeader::kSegment | flags, MessageHeader::number_of(task.segment, is_total));
  std::memcpy(message.data(), &h, sizeof h);
  notes_.write(task, message.data() + kMessageHeaderBytes, bytes);
  seal(message);
  return message;
}

}  // namespace

std::unique_ptr<Exchange> make_segment_exchange(const ExchangeSetup& setup, ExchangePlan plan) {
  return std::make_unique<SegmentExchange>(setup, std::move(plan));
}

std::uint64_t chunk_wire_bytes(const ExchangeShape& shape, std::size_t chunk, const Codec& codec) {
  std::uint64_t bytes = 0;
  for (std::size_t at = 0; at < shape.segments(); ++at) {
    const std::size_t n = shape.segment_size(chunk, at);
    if (n == 0) continue;
    const auto payload = codec.fixed_payload_bytes(n);
    DP_ASSERT(payload.has_value(), "the payloads of {} have no fixed size", codec.spec().name);
    bytes += kMessageFrameBytes + *payload;
  }
  return bytes;
}

}  // namespace dp
