#include "comm/exchange/message_slots.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"

namespace dp {

MessageSlots::MessageSlots(Transport& transport, std::size_t window, std::size_t most_targets,
                           ExchangeStats& stats)
    : rank_(transport.rank()),
      ranks_(static_cast<std::size_t>(transport.size())),
      most_targets_(most_targets),
      stats_(stats),
      receives_(2 * window),
      sends_(window),
      arrival_order_(receives_.size()),
      channel_(transport.open(notice_slot() + 1 + (ranks_ - 1))) {}

void MessageSlots::begin_step(BufferSet& buffers) {
  buffers_ = &buffers;
  under_way_ = sends_under_way_ = arrival_head_ = arrival_count_ = 0;
  std::ranges::fill(receives_, Receive{});
}

std::size_t MessageSlots::free_receive(std::size_t at) const {
  while (at < receives_.size() && receives_[at].state != State::free) ++at;
  return at < receives_.size() ? at : kNone;
}

void MessageSlots::post(std::size_t receive, int from, int tag) {
  receives_[receive].state = State::posted;
  arrival_order_[(arrival_head_ + arrival_count_++) % arrival_order_.size()] = receive;
  channel_->receive(receive, receive_buffer(receive), from, tag);
  ++under_way_;
}

std::span<const std::byte> MessageSlots::next() const {
  const std::size_t receive = arrival_order_[arrival_head_];
  return receive_buffer(receive).first(receives_[receive].bytes);
}

std::size_t MessageSlots::take() {
  const std::size_t receive = arrival_order_[arrival_head_];
  arrival_head_ = (arrival_head_ + 1) % arrival_order_.size();
  --arrival_count_;
  receives_[receive].state = State::free;
  return receive;
}

std::size_t MessageSlots::free_send(std::size_t at) const {
  for (; at < sends_.size(); ++at) {
    if (sends_[at].under_way == 0) return at;
  }
  return kNone;
}

void MessageSlots::send(std::size_t send, std::span<const std::byte> message,
                        std::span<const int> to, int tag) {
  begin_send(send, kNone, message, to, tag);
}

void MessageSlots::forward(std::size_t send, std::size_t receive,
                           std::span<const std::byte> message, std::span<const int> to, int tag) {
  receives_[receive].state = State::forwarding;
  begin_send(send, receive, message, to, tag);
}

void MessageSlots::begin_send(std::size_t send, std::size_t forwards,
                              std::span<const std::byte> message, std::span<const int> to,
                              int tag) {
  sends_[send] = {.under_way = to.size(), .forwards = forwards};
  std::size_t slot = send_slot(send);
  for (const int target : to) {
    channel_->send(slot++, message, target, tag);
    stats_.sent_bytes += message.size();
    ++stats_.sent_messages;
    ++sends_under_way_;
    ++under_way_;
  }
}

void MessageSlots::send_ended(std::size_t slot) {
  Send& send = sends_[(slot - receives_.size()) / most_targets_];
  --sends_under_way_;
  if (--send.under_way == 0 && send.forwards != kNone) {
    receives_[send.forwards].state = State::free;
  }
}

void MessageSlots::post_notice(std::span<std::byte> buffer, int tag) {
  channel_->receive_notice(notice_slot(), buffer, tag);
  ++under_way_;
}

void MessageSlots::send_notices(std::span<const std::byte> notice, std::span<const int> to,
                                int tag) {
  std::size_t slot = notice_slot() + 1;
  for (const int target : to) {
    channel_->send_notice(slot++, notice, target, tag);
    stats_.sent_bytes += notice.size();
    ++stats_.sent_messages;
    ++under_way_;
  }
}

}  // namespace dp
