// Closes connections to Open MPI's ports that hold a rank inside MPI.
//
// Whoever connects to a port of Open MPI and sends fewer bytes than a greeting has, holds the rank:
// MPI reads the greeting in a call that waits until it is whole (btl tcp, 4.1). A peer sends its
// greeting of 24 bytes in one piece, as soon as it is connected. So a *stranger* is a connection
// that somebody has made to a listening port of this process, and on which some bytes have come,
// but fewer than 24, at two looks. A peer's connection never looks like that, also not while this
// process or the peer is stopped or a link is cut: less than a greeting is never sent. A stranger's
// connection is shut, and MPI goes on as if its other end had closed it.
//
// A thread of its own looks; it reads this process' own list of files and sends nothing.
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
  // Looks once. Shuts the connections that are strangers' now and were at the look before, and
  // returns the addresses of their other ends.
  [[nodiscard]] std::vector<std::string> look();
  // Whether the last look has seen some that the next one will shut.
  [[nodiscard]] bool has_seen() const { return !seen_.empty(); }

 private:
  std::set<ino_t> seen_;  // at the last look, by the sockets' numbers in the kernel
};

class StrangerWatch {
 public:
  // `tell` is called by the thread, once for each address. A stranger holds a rank until the next
  // look; those behind it, for a few hundredths of a second each.
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
