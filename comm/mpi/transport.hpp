// Tagged messages between ranks: all that an exchange knows of the network.
//
// A transport belongs to one rank. An exchange opens a channel on it, with a *slot* for each
// transfer that may be under way at the same time. receive() and send() occupy a slot until poll()
// has reported the end of the transfer:
//
//     receive   the next message of that tag from that rank is written to `buffer`
//     send      `message` goes to that rank; it must not change until the transfer has ended
//     poll      reports the transfers that have ended since the last call; nothing here waits
//
// Messages of one tag arrive from a rank in the order in which it sent them; messages of different
// ranks or tags arrive in any order. A message completes the oldest receive() of its rank and tag,
// even if the message arrives before this receive() is called.
//
// Every message ends with a seal (seal.hpp). The sender writes the seal, and the receiver checks it
// by check_seal().
//
// A *notice* is a message of a few bytes about its sender's state. receive_notice() accepts it from
// any rank, and a transport that delays messages does not delay notices.
//
// Transports: MPI (mpi_transport.hpp), a slow link in front of another transport
// (throttled_transport.hpp), and, for tests, several ranks in one process
// (tests/comm/exchange/planned_network.hpp).
//
// Ownership: a transport outlives its channels. Buffers belong to the caller and outlive their
// transfers. If a channel is destroyed with transfers under way, their buffers must exist until the
// job ends. One thread at a time uses a transport and its channels. Nothing is allocated after
// open().
//
// Errors: failures of the network throw Error(communication), and the job cannot continue. A
// message must not be longer than the buffer that receives it, since not every network reports this
// mistake. A silent rank is not an error here: poll() reports nothing, and the caller has a
// deadline.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "comm/mpi/seal.hpp"

namespace dp {

// The end of a transfer.
struct Completion {
  std::size_t slot = 0;
  std::size_t bytes = 0;  // of a received message; 0 for a send
  int from = 0;           // the sender of a received message
};

class Channel {
 public:
  virtual ~Channel() = default;

  virtual void receive(std::size_t slot, std::span<std::byte> buffer, int from, int tag) = 0;
  virtual void send(std::size_t slot, std::span<const std::byte> message, int to, int tag) = 0;
  virtual void receive_notice(std::size_t slot, std::span<std::byte> buffer, int tag) = 0;
  virtual void send_notice(std::size_t slot, std::span<const std::byte> notice, int to,
                           int tag) = 0;
  // Moves messages and returns the transfers that have ended. The result is valid until the next
  // call.
  [[nodiscard]] virtual std::span<const Completion> poll() = 0;
  // Sends all messages that are still held back, so that no other rank waits for them. Call it when
  // this rank ends, and do not poll afterwards.
  virtual void let_go() {}
};

class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }  // the number of ranks
  // The name of a rank's host; empty if it is not known.
  [[nodiscard]] virtual std::string_view host(int /*rank*/) const { return {}; }
  // Throws Error(communication) if the message received from that rank was damaged. what() names
  // the message.
  template <class What>
  void check_seal(std::span<const std::byte> message, int from, What what) const {
    if (is_intact(message)) return;
    throw_damaged(what(), {.rank = from, .host = host(from)}, {.rank = rank_, .host = host(rank_)});
  }
  // Opens a channel with that many slots. All channels of a rank share its tags.
  [[nodiscard]] virtual std::unique_ptr<Channel> open(std::size_t slots) = 0;

 protected:
  Transport(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

}  // namespace dp
