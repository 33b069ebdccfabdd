#include "comm/capi/child_of_rank.hpp"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/base/parent_process.hpp"

namespace dp::capi {
namespace {

constexpr const char* kNote = "DPTRAIN_COMM_RANK";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string job() { return variable("PMIX_NAMESPACE"); }

// The number before the first colon.
int number(std::string_view text) { return whole_number(text.substr(0, text.find(':'))); }

// A claim is a local socket whose name is the identity. The kernel frees the name when the process
// ends, for whatever reason.
int claim = -1;  // the socket

struct SocketName {
  sockaddr_un address = {};
  socklen_t bytes = 0;
};

SocketName name_of(std::string_view identity) {
  SocketName name;
  name.address.sun_family = AF_UNIX;  // the path begins with a zero byte: a name without a file
  const std::string text = fmt::format("dptrain_comm:{}", identity);
  const std::size_t size = std::min(text.size(), sizeof name.address.sun_path - 1);
  std::copy_n(text.end() - static_cast<std::ptrdiff_t>(size), size, name.address.sun_path + 1);
  name.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return name;
}

int open_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

// The process of this user that listens at the name, or 0 if there is none. Also 0 if that process
// runs in a container with its own process numbers, because mpirun may have created the same
// identity there for another job.
int process_at(const SocketName& name) {
  const int asking = open_socket();
  if (asking < 0) return 0;
  ucred holder = {};
  constexpr int kTries = 100;  // the process may not be listening yet
  for (int i = 0; i < kTries; ++i) {
    if (::connect(asking, reinterpret_cast<const sockaddr*>(&name.address), name.bytes) == 0) {
      socklen_t size = sizeof holder;
      if (::getsockopt(asking, SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0) holder = {};
      break;
    }
    if (errno != ECONNREFUSED) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::close(asking);
  return holder.uid == ::geteuid() ? holder.pid : 0;
}

}  // namespace

void note_rank(int rank, int size) {
  setenv(kNote, fmt::format("{}:{}:{}:{}", ::getpid(), rank, size, job()).c_str(), 1);
}

void require_no_child() {
  const char* text = std::getenv(kNote);
  if (text == nullptr) return;
  const std::string_view note = text;
  const std::size_t rank = note.find(':') + 1, size = note.find(':', rank) + 1;
  const std::size_t name = note.find(':', size) + 1;
  if (rank == 0 || size == 0 || name == 0 || note.substr(name) != job()) return;
  const int noted = number(note);
  for (int process = parent_of(::getpid()); process > 1; process = parent_of(process)) {
    if (process != noted) continue;
    throw_error(ErrorKind::usage,
                "rank {} (process {}) started this process; only the rank itself may call "
                "dptrain_comm",
                number(note.substr(rank)), noted);
  }
}

void claim_identity(std::string_view command) {
  const std::string rank = variable("PMIX_RANK");
  if (claim >= 0 || job().empty() || rank.empty()) return;
  const int socket = open_socket();
  if (socket < 0) return;
  const SocketName name = name_of(fmt::format("{}:{}", job(), rank));
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&name.address), name.bytes) == 0) {
    constexpr int kMostAsking = 64;
    ::listen(socket, kMostAsking);
    claim = socket;
    // A forked worker may outlive the rank, so it gives up its copy of the claim.
    static const int registered = ::pthread_atfork(nullptr, nullptr, release_identity);
    static_cast<void>(registered);
    return;
  }
  const bool is_taken = errno == EADDRINUSE;
  ::close(socket);
  const int holder = is_taken ? process_at(name) : 0;
  if (holder == 0) return;
  const std::string ranks = variable("OMPI_COMM_WORLD_SIZE");
  throw_error(ErrorKind::usage,
              "PMIX_RANK={} of this job is taken by process {}: a launcher in mpirun, such as "
              "torchrun or Lightning's, has also started this process. Only mpirun may start the "
              "ranks: mpirun -np {} {}, without torchrun, and with devices=1 in Lightning",
              rank, holder, ranks.empty() ? "N" : ranks, command);
}

void release_identity() {
  const int socket = std::exchange(claim, -1);
  if (socket >= 0) ::close(socket);
}

}  // namespace dp::capi
