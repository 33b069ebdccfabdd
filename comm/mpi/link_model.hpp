// A model of a slow link. --throttle uses it to delay messages on a fast link.
//
// Every rank has its own link, which carries `bits_per_s` in each direction at once, like a network
// card at a switch. The sender hands a message to MPI at the time when the sender's link would have
// carried it. If several ranks send to one receiver, the receiver's link carries their messages one
// after the other.
//
// A message takes more bytes on the wire than it contains: 66 more for every 1448. The model counts
// this overhead, too. So does tc's token bucket, because it counts whole frames of TCP over
// Ethernet. A link may make up for kSlack_s of idle time, so that a thread that wakes up a little
// late loses no time on the link.
//
// Times are in seconds of any clock that does not go backwards. Only one thread may use the model.
#pragma once

#include <algorithm>
#include <cstddef>

namespace dp {

class LinkModel {
 public:
  static constexpr double kSlack_s = 3e-3;
  static constexpr double kFrameBytes = 1448.0, kFrameOverheadBytes = 66.0;
  // The overhead of a message in bytes, in addition to the headers of its full frames. It consists
  // of MPI's headers (about 32), half a frame's headers for the last frame, which is not full, and
  // the frame that acknowledges the message.
  static constexpr double kMessageBytes = 32 + 1.5 * kFrameOverheadBytes;

  explicit LinkModel(double bits_per_s) : seconds_per_byte_(1.0 / goodput(bits_per_s)) {}

  // The payload in bytes per second that a link of this bandwidth carries.
  [[nodiscard]] static constexpr double goodput(double bits_per_s) {
    return bits_per_s / 8.0 / (1.0 + kFrameOverheadBytes / kFrameBytes);
  }

  // The bytes on the wire for a number of messages with `bytes` of payload in all.
  [[nodiscard]] static constexpr double wire_bytes(double bytes, double messages) {
    return bytes * (1.0 + kFrameOverheadBytes / kFrameBytes) + messages * kMessageBytes;
  }

  // Returns the time at which the link has carried a message that it receives now.
  [[nodiscard]] double transmit(std::size_t bytes, double now_s) {
    sent_until_s_ = std::max(sent_until_s_, now_s - kSlack_s) + seconds(bytes);
    return sent_until_s_;
  }
  // Returns the arrival time of a message, now that the sender's link has carried all of it. The
  // receiver's link carried the message at the same time, unless that link was busy with other
  // messages.
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
