// Closes foreign connections to Open MPI's ports, which would block a rank inside MPI.
//
// If a program connects to a port of Open MPI and sends less than a whole greeting, the rank is
// blocked: MPI reads the greeting in a call that waits until the greeting is complete (btl tcp,
// 4.1). A peer sends its greeting of 24 bytes in one piece, as soon as it is connected. A
// *stranger* is an incoming connection to a listening port of this process, on which only 1 to 23
// bytes have arrived at two consecutive looks. A peer's connection is never in this state, even
// while this process or the peer is stopped or a link is cut, because a peer never sends only a
// part of its greeting. The watch shuts down a stranger's connection, and MPI continues as if the
// other end had closed it.
//
// A separate thread looks; it reads this process' list of open files and sends nothing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace dp {

class Strangers {
 public:
  // Shuts down each connection that was in the state of a stranger at the previous look and still
  // is. Returns the addresses of the programs at the far ends.
  [[nodiscard]] std::vector<std::string> look();
  // Whether the last look found connections that the next look may shut down.
  [[nodiscard]] bool has_seen() const { return !seen_.empty(); }

 private:
  std::set<ino_t> seen_;  // at the last look: the sockets' inode numbers
};

class StrangerWatch {
 public:
  // The watch's thread calls `tell` once for each stranger's address. A stranger blocks a rank
  // until the next look. Each further stranger that is queued behind it blocks the rank for another
  // few hundredths of a second.
  StrangerWatch(std::chrono::milliseconds between_looks,
                std::function<void(const std::string& address)> tell);
  ~StrangerWatch();
  StrangerWatch(const StrangerWatch&) = delete;
  StrangerWatch& operator=(const StrangerWatch&) = delete;

 private:
  void main_loop();

  std::chrono::milliseconds between_looks_;
  std::function<void(const std::string&)> tell_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dp
