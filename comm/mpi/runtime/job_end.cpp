#include "comm/mpi/runtime/job_end.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "comm/mpi/host_ranks.hpp"

namespace dp {
namespace {

// The time from the end of a rank until mpirun or its daemon, which has started the rank, is
// killed. mpirun needs two seconds to end the ranks that it reaches, and more on a busy machine.
constexpr int kGrace_ms = 6000;

constexpr std::array<std::string_view, 6> kMpiLaunchers = {"mpirun", "mpiexec", "orterun",
                                                           "orted",  "prterun", "prted"};

// Opens a process file descriptor of the process that has started this rank. Unlike a process
// number, the descriptor cannot refer to a later process. Returns -1 if that process is not one of
// Open MPI's.
int open_launcher() {
  if (rank_from_launcher() < 0) return -1;
  const pid_t parent = ::getppid();
  std::string name;
  std::ifstream file("/proc/" + std::to_string(parent) + "/comm");
  std::getline(file, name);
  for (const std::string_view launcher : kMpiLaunchers) {
    if (name == launcher) return static_cast<int>(::syscall(SYS_pidfd_open, parent, 0));
  }
  return -1;
}

// Whether the process has ended within that time.
bool has_ended(int process, int limit_ms) {
  pollfd event = {.fd = process, .events = POLLIN, .revents = 0};
  int events = 0;
  do {
    events = ::poll(&event, 1, limit_ms);
  } while (events < 0 && errno == EINTR);
  return events > 0;
}

// Runs in the small process. After the fork, this process may make system calls only: the rank's
// other threads do not exist in it, and the locks that they held stay locked.
[[noreturn]] void end_launcher(int process) {
  ::setsid();  // leave the rank's process group, because mpirun ends the whole group
  ::prctl(PR_SET_NAME, "dp-end-job");
  // mpirun waits until no process holds a rank's output open, so close it.
  const auto kept = static_cast<unsigned>(process);
  if (kept > 0) ::syscall(SYS_close_range, 0u, kept - 1, 0u);
  ::syscall(SYS_close_range, kept + 1, ~0u, 0u);
  // SIGTERM would not suffice: mpirun ignores it while it waits for its daemons.
  if (!has_ended(process, kGrace_ms)) {
    ::syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, 0);
  }
  ::_exit(0);
}

void write_exit_code(int exit_code) {
  const char* path = std::getenv("DPTRAIN_EXIT_FILE");
  if (path == nullptr || *path == '\0') return;
  // Only the first rank that ends the job writes the exit code.
  const int file = ::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return;
  std::array<char, 8> text{};
  char* end = std::to_chars(text.data(), text.data() + text.size() - 1, exit_code).ptr;
  *end++ = '\n';
  const auto length = static_cast<std::size_t>(end - text.data());
  if (::write(file, text.data(), length) < 0) ::unlink(path);
  ::close(file);
}

}  // namespace

bool is_first_to_speak() {
  // Open MPI 4 and Open MPI 5 name the folder by different variables.
  const char* folder = std::getenv("OMPI_MCA_orte_jobfam_session_dir");
  if (folder == nullptr) folder = std::getenv("PMIX_SERVER_TMPDIR");
  if (folder == nullptr) return true;
  // mpirun removes the folder, with this file, when the job has ended.
  const std::string path = std::string(folder) + "/dptrain-has-spoken";
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file >= 0) ::close(file);
  return file >= 0 || errno != EEXIST;
}

void prepare_job_end(int exit_code) {
  write_exit_code(exit_code);
  const int launcher = open_launcher();
  if (launcher < 0) return;
  if (::fork() == 0) end_launcher(launcher);
  ::close(launcher);
}

void end_job_now(int exit_code) {
  prepare_job_end(exit_code);
  ::_exit(exit_code);
}

}  // namespace dp
