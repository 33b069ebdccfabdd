#include "comm/mpi/runtime/strangers.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <utility>

namespace dp {
namespace {

constexpr std::uint64_t kGreeting_bytes = 24;  // a name of 8 bytes and a fixed word of 16
constexpr std::size_t kMostTold = 100;         // addresses that are reported
// After a stranger, the next look comes soon: more strangers may be queued behind it, in
// connections that MPI has not accepted yet.
constexpr std::chrono::milliseconds kNextLook{20};

struct Ends {
  sockaddr_storage local{}, peer{};
};

int option_of(int file, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  return ::getsockopt(file, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

std::uint16_t port_of(const sockaddr_storage& address) {
  // The port is at the same place in the addresses of IPv4 and IPv6.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string text_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&address);
    ::inet_ntop(AF_INET, &four->sin_addr, text, sizeof text);
    return text;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&address);
  ::inet_ntop(AF_INET6, &six->sin6_addr, text, sizeof text);
  const std::string whole = text, mapped = "::ffff:";
  return IN6_IS_ADDR_V4MAPPED(&six->sin6_addr) ? whole.substr(mapped.size()) : whole;
}

bool is_internet(const sockaddr_storage& address) {
  return address.ss_family == AF_INET || address.ss_family == AF_INET6;
}

// This process' sockets (file descriptors), and the ports on which it listens.
struct Sockets {
  std::vector<int> files;
  std::set<std::uint16_t> ports;
};

Sockets sockets_of_this_process() {
  Sockets found;
  std::error_code code;
  for (std::filesystem::directory_iterator at("/proc/self/fd", code), end; !code && at != end;
       at.increment(code)) {
    const std::string name = at->path().filename();
    int file = -1;
    std::from_chars(name.data(), name.data() + name.size(), file);
    const int listens = option_of(file, SO_ACCEPTCONN);
    if (listens < 0 || option_of(file, SO_TYPE) != SOCK_STREAM) continue;
    if (listens == 0) {
      found.files.push_back(file);
      continue;
    }
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    if (::getsockname(file, reinterpret_cast<sockaddr*>(&local), &length) == 0 &&
        is_internet(local)) {
      found.ports.insert(port_of(local));
    }
  }
  return found;
}

// Whether the socket is a connection to one of `ports` and has received only a part of a greeting.
bool is_half_greeted(int file, const std::set<std::uint16_t>& ports, Ends& ends) {
  socklen_t length = sizeof ends.local;
  if (::getsockname(file, reinterpret_cast<sockaddr*>(&ends.local), &length) != 0) return false;
  if (!is_internet(ends.local) || !ports.contains(port_of(ends.local))) return false;
  length = sizeof ends.peer;
  if (::getpeername(file, reinterpret_cast<sockaddr*>(&ends.peer), &length) != 0) return false;
  tcp_info info{};
  length = sizeof info;
  if (::getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  // Old kernels do not count the received bytes.
  if (length < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) {
    return false;
  }
  return info.tcpi_bytes_received > 0 && info.tcpi_bytes_received < kGreeting_bytes;
}

}  // namespace

std::vector<std::string> Strangers::look() {
  std::vector<std::string> addresses;
  std::set<ino_t> before = std::exchange(seen_, {});
  const Sockets sockets = sockets_of_this_process();
  for (const int number : sockets.files) {
    Ends ends;
    if (!is_half_greeted(number, sockets.ports, ends)) continue;
    // MPI may close the file meanwhile, and the system may reuse its number. The code below
    // therefore uses a duplicate of the descriptor, which always refers to the same connection.
    const int file = ::fcntl(number, F_DUPFD_CLOEXEC, 0);
    if (file < 0) continue;
    struct stat status {};
    if (::fstat(file, &status) == 0 && is_half_greeted(file, sockets.ports, ends)) {
      if (!before.contains(status.st_ino)) {
        seen_.insert(status.st_ino);
      } else if (::shutdown(file, SHUT_RDWR) == 0) {
        addresses.push_back(text_of(ends.peer));
      }
    }
    ::close(file);
  }
  return addresses;
}

StrangerWatch::StrangerWatch(std::chrono::milliseconds between_looks,
                             std::function<void(const std::string&)> tell)
    : between_looks_(between_looks), tell_(std::move(tell)), thread_([this] { main_loop(); }) {}

StrangerWatch::~StrangerWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  over_.notify_all();
  thread_.join();
}

void StrangerWatch::main_loop() {
  pthread_setname_np(pthread_self(), "dp-strangers");
  Strangers strangers;
  std::set<std::string> told;
  std::unique_lock lock(mutex_);
  std::chrono::milliseconds pause = between_looks_;
  while (!over_.wait_for(lock, pause, [&] { return is_over_; })) {
    const std::vector<std::string> addresses = strangers.look();
    for (const std::string& address : addresses) {
      if (told.size() < kMostTold && told.insert(address).second) tell_(address);
    }
    const bool may_come_more = strangers.has_seen() || !addresses.empty();
    pause = may_come_more ? std::min(kNextLook, between_looks_) : between_looks_;
  }
}

}  // namespace dp
