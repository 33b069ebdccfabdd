#include "app/process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

#include "kernels/base/error.hpp"

namespace dp {

void restart_with_short_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "20000", 0);
  // By its own path, so that top and ps still show the program's name.
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return;  // without /proc the program works, but its threads spin
  path[length] = '\0';
  ::execv(path, argv);
}

void check_output() {
  std::cout.flush();
  errno = 0;
  const bool is_complete = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (is_complete || errno == EPIPE) return;
  // The reason of an earlier failure was not kept, so try again to get it.
  if (errno == 0 && ::write(STDOUT_FILENO, "\n", 1) > 0) errno = 0;
  if (errno == EPIPE) return;
  throw_error(ErrorKind::data, "standard output cannot be written{}",
              errno == 0 ? "" : fmt::format(": {}", std::strerror(errno)));
}

namespace {

std::vector<int> cores_of(const cpu_set_t& set) {
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// "0-3,8": neighbouring numbers become a range.
std::string to_text(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t end = i;
    while (end + 1 < cores.size() && cores[end + 1] == cores[end] + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(cores[i]);
    if (end > i) text += "-" + std::to_string(cores[end]);
    i = end + 1;
  }
  return text;
}

// The cores that a process may use, and the identity of the running kernel.
struct CorePool {
  std::array<char, 40> boot_id = {};
  cpu_set_t cores;
};

}  // namespace

CpuShare take_cpu_share(Communicator& comm, int wanted_threads) {
  // The kernel reduces "all cores" to what the container or cpuset allows.
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
  ::sched_setaffinity(0, sizeof(all), &all);
  CorePool mine;
  CPU_ZERO(&mine.cores);
  if (::sched_getaffinity(0, sizeof(mine.cores), &mine.cores) != 0) CPU_SET(0, &mine.cores);
  std::ifstream("/proc/sys/kernel/random/boot_id").read(mine.boot_id.data(), 36);
  std::vector<int> cores = cores_of(mine.cores);

  const std::vector<CorePool> pools = comm.all_gather(mine);
  int local_rank = 0, local_size = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const CorePool& other = pools[static_cast<std::size_t>(rank)];
    if (other.boot_id != mine.boot_id || !CPU_EQUAL(&other.cores, &mine.cores)) continue;
    if (rank < comm.rank()) ++local_rank;
    ++local_size;
  }

  CpuShare share;
  share.cores_on_host = static_cast<int>(cores.size());
  share.threads = std::max(1, share.cores_on_host / local_size);
  share.cores_per_rank = static_cast<double>(share.cores_on_host) / static_cast<double>(local_size);
  if (local_size <= share.cores_on_host && wanted_threads <= share.threads) {
    const auto first = cores.begin() + local_rank * share.threads;
    cores = std::vector<int>(first, first + share.threads);
    cpu_set_t own;
    CPU_ZERO(&own);
    for (const int core : cores) CPU_SET(core, &own);
    ::sched_setaffinity(0, sizeof(own), &own);
  }
  if (wanted_threads > 0) share.threads = wanted_threads;
  share.cores = to_text(cores);
  return share;
}

int open_launchers_stream(int number) {
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return -1;
  const std::string path = "/proc/" + std::to_string(::getppid()) + "/fd/" + std::to_string(number);
  return ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
}

bool output_is_watched() {
  if (::isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return true;
  const int file = open_launchers_stream(STDOUT_FILENO);
  if (file < 0) return false;
  const bool is_terminal = ::isatty(file) != 0;
  ::close(file);
  return is_terminal;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

std::size_t peak_memory_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace dp
