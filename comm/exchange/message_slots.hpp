// The message buffers of one rank in the exchange of a bucket, and all transfers into and out of
// them.
//
// There are `window` buffers for sends and 2 x window for receives, each for one message. A
// forwarded message leaves from the buffer that received it; this buffer is free again when its
// sends have ended. At most `window` sends are under way, so at least `window` receives are always
// posted or waiting to be taken (exchange_plan.hpp needs that).
//
// Start notices (message_header.hpp) have their own slots and no buffers here: one send to each
// other rank, and one receive.
//
// The caller posts receives and later takes their messages in the same order, no matter which
// message arrives first. Nothing here waits or interprets messages. Nothing is allocated after
// construction; failures are the transport's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/exchange/exchange.hpp"
#include "comm/mpi/transport.hpp"

namespace dp {

class MessageSlots {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // A message has at most `most_targets` targets. Bytes are counted in `stats`, which outlives this
  // object.
  MessageSlots(Transport& transport, std::size_t window, std::size_t most_targets,
               ExchangeStats& stats);

  [[nodiscard]] std::size_t buffers() const { return receives_.size() + sends_.size(); }
  // Begins a step; all transfers of the previous one must have ended. `buffers` must live until the
  // transfers of this step have ended.
  void begin_step(BufferSet& buffers);

  // ---- receives
  // The first free buffer from index `at` on, or kNone.
  [[nodiscard]] std::size_t free_receive(std::size_t at) const;
  void post(std::size_t receive, int from, int tag);
  // Returns whether the oldest message that is not yet taken has arrived. The oldest message is the
  // one whose receive was posted first.
  [[nodiscard]] bool has_come() const {
    return receives_[arrival_order_[arrival_head_]].state == State::arrived;
  }
  // That oldest message.
  [[nodiscard]] std::span<const std::byte> next() const;
  // Takes that message and returns its buffer. The buffer is free, but keeps its bytes until the
  // next post().
  std::size_t take();

  // ---- sends
  // The first free buffer from index `at` on, or kNone.
  [[nodiscard]] std::size_t free_send(std::size_t at = 0) const;
  [[nodiscard]] std::span<std::byte> send_buffer(std::size_t send) const {
    return {buffers_->at(receives_.size() + send), buffers_->bytes()};
  }
  // Sends a message that lies in send_buffer(send).
  void send(std::size_t send, std::span<const std::byte> message, std::span<const int> to, int tag);
  // Forwards the message that was taken from that receive, unchanged.
  void forward(std::size_t send, std::size_t receive, std::span<const std::byte> message,
               std::span<const int> to, int tag);
  [[nodiscard]] bool is_sending() const { return sends_under_way_ > 0; }

  // ---- notices
  void post_notice(std::span<std::byte> buffer, int tag);
  // Sends the notice to these ranks. The notice must not change until its sends have ended.
  void send_notices(std::span<const std::byte> notice, std::span<const int> to, int tag);

  // ---- all transfers
  // Handles transfers that have ended, and calls on_notice(bytes, from) for a notice that has
  // arrived. Returns whether any transfer has ended.
  template <class OnNotice>
  bool poll(OnNotice on_notice) {
    const std::span<const Completion> all = channel_->poll();
    under_way_ -= all.size();
    for (const Completion& ended : all) {
      if (ended.slot < receives_.size()) {
        receives_[ended.slot] = {.state = State::arrived, .bytes = ended.bytes};
        stats_.received_bytes += ended.bytes;
      } else if (ended.slot < notice_slot()) {
        send_ended(ended.slot);
      } else if (ended.slot == notice_slot()) {
        stats_.received_bytes += ended.bytes;
        on_notice(ended.bytes, ended.from);
      }
    }
    return !all.empty();
  }
  [[nodiscard]] bool has_ended() const { return under_way_ == 0; }
  void let_go() { channel_->let_go(); }

 private:
  enum class State : std::uint8_t { free, posted, arrived, forwarding };
  struct Receive {
    State state = State::free;
    std::size_t bytes = 0;
  };
  struct Send {
    std::size_t under_way = 0;     // the number of targets
    std::size_t forwards = kNone;  // the receive whose buffer it sends
  };

  // The channel has slots for, in this order: the receives, the sends (one slot for each target of
  // a message), the receive of notices, and the sends of notices.
  [[nodiscard]] std::size_t send_slot(std::size_t send) const {
    return receives_.size() + send * most_targets_;
  }
  [[nodiscard]] std::size_t notice_slot() const { return send_slot(sends_.size()); }
  [[nodiscard]] std::span<std::byte> receive_buffer(std::size_t receive) const {
    return {buffers_->at(receive), buffers_->bytes()};
  }
  void begin_send(std::size_t send, std::size_t forwards, std::span<const std::byte> message,
                  std::span<const int> to, int tag);
  void send_ended(std::size_t slot);

  int rank_;
  std::size_t ranks_, most_targets_;
  ExchangeStats& stats_;
  BufferSet* buffers_ = nullptr;
  std::vector<Receive> receives_;
  std::vector<Send> sends_;
  std::vector<std::size_t> arrival_order_;  // a queue of posted and arrived receives
  std::size_t arrival_head_ = 0, arrival_count_ = 0;
  std::size_t sends_under_way_ = 0;  // of segments
  std::size_t under_way_ = 0;        // all transfers
  std::unique_ptr<Channel> channel_;
};

}  // namespace dp
