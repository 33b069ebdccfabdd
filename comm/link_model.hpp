// A slow link in front of a fast one: what --throttle delays messages by.
//
// Every rank has a link of its own that carries `bits_per_s` in each direction at once, as a
// network card at a switch does. A message leaves when the link has carried it: the sender hands it
// to MPI only then. A receiver that several ranks send to takes their messages one after the other.
//
// On the wire a message has the frames of TCP over Ethernet around it, as tc's token bucket counts
// them: 66 bytes for every 1448. Tokens are kept for kSlack_s, so that a thread that wakes up a
// little late loses no time on the link.
//
// Times are seconds of any clock that does not go backwards. Not for several threads.
#pragma once

#include <algorithm>
#include <cstddef>

namespace dp {

class LinkModel {
 public:
  static constexpr double kSlack_s = 3e-3;
  static constexpr double kFrameBytes = 1448.0, kFrameOverheadBytes = 66.0;

  explicit LinkModel(double bits_per_s)
      : seconds_per_byte_(8.0 / bits_per_s * (1.0 + kFrameOverheadBytes / kFrameBytes)) {}

  // When a message that is given to the link now has left it.
  [[nodiscard]] double transmit(std::size_t bytes, double now_s) {
    sent_until_s_ = std::max(sent_until_s_, now_s - kSlack_s) + seconds(bytes);
    return sent_until_s_;
  }
  // When a message that was handed over now is there. Its sender's link has carried it until now,
  // and this one did so at the same time, unless it was busy with others.
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
