// A model of a slow link in front of a fast one; --throttle delays messages by it.
//
// Every rank has its own link, which carries `bits_per_s` in each direction at once, like a network
// card at a switch. The sender hands a message to MPI when its link has carried it. If several
// ranks send to one receiver, its link carries their messages one after the other.
//
// A message takes more bytes on the wire: 66 for every 1448, since tc's token bucket counts frames
// of TCP over Ethernet. Tokens accumulate for kSlack_s, so that a thread that wakes up a little
// late loses no time on the link.
//
// Times are in seconds of any clock that does not go backwards. Only one thread may use it.
#pragma once

#include <algorithm>
#include <cstddef>

namespace dp {

class LinkModel {
 public:
  static constexpr double kSlack_s = 3e-3;
  static constexpr double kFrameBytes = 1448.0, kFrameOverheadBytes = 66.0;
  // The overhead of a message, in bytes, beyond its payload and the headers of full frames: MPI's
  // headers (about 32), half a frame's headers, since the last frame is not full, and the frame
  // that acknowledges the message.
  static constexpr double kMessageBytes = 32 + 1.5 * kFrameOverheadBytes;

  explicit LinkModel(double bits_per_s) : seconds_per_byte_(1.0 / goodput(bits_per_s)) {}

  // The bytes of messages that such a link carries per second.
  [[nodiscard]] static constexpr double goodput(double bits_per_s) {
    return bits_per_s / 8.0 / (1.0 + kFrameOverheadBytes / kFrameBytes);
  }

  // The bytes on the wire for a number of messages with `bytes` of payload in all.
  [[nodiscard]] static constexpr double wire_bytes(double bytes, double messages) {
    return bytes * (1.0 + kFrameOverheadBytes / kFrameBytes) + messages * kMessageBytes;
  }

  // The time at which a message handed to the link now has left it.
  [[nodiscard]] double transmit(std::size_t bytes, double now_s) {
    sent_until_s_ = std::max(sent_until_s_, now_s - kSlack_s) + seconds(bytes);
    return sent_until_s_;
  }
  // The time at which a message that the sender has handed over now arrives. The sender's link has
  // carried it until now; the receiver's link carried it at the same time unless it was busy with
  // other messages.
  [[nodiscard]] double receive(std::size_t bytes, double now_s) {
    received_until_s_ = std::max(received_until_s_ + seconds(bytes), now_s - kSlack_s);
    return std::max(received_until_s_, now_s);
  }

 private:
  [[nodiscard]] double seconds(std::size_t bytes) const {
    return static_cast<double>(bytes) * seconds_per_byte_;
  }

  double seconds_per_byte_;
  double sent_until_s_ = -1e300, received_until_s_ = -1e300;
};

}  // namespace dp
