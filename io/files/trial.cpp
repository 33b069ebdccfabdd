#include "io/files/trial.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <iterator>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr double kSlowDisk_bytes_per_s = 1e7, kSlowProcessor_bytes_per_s = 1e8;

[[noreturn]] void be_child(const std::function<void()>& read, rlim_t processor_s) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core = {0, 0}, processor = {processor_s, processor_s + 1};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::setrlimit(RLIMIT_CPU, &processor);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGTERM, SIGINT, SIGXCPU}) {
    std::signal(number, SIG_DFL);
  }
  try {
    read();
  } catch (...) {
    // Ignored here, because the parent will read the file too and meet the same exception.
  }
  ::_exit(0);
}

bool has_ended(int child, double limit_s) {
  pollfd event = {.fd = child, .events = POLLIN, .revents = 0};
  int events = 0;
  do {
    events = ::poll(&event, 1, static_cast<int>(limit_s * 1000));
  } while (events < 0 && errno == EINTR);
  return events > 0;
}

// With AddressSanitizer, only a process with a single thread can fork safely. Otherwise another
// thread may hold a lock of the sanitizer's allocator at the fork. The child would inherit the lock
// in this state and might wait for ever.
bool can_fork() {
#if defined(__SANITIZE_ADDRESS__)
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}) == 1;
#else
  return true;
#endif
}

}  // namespace

void try_in_child(const std::string& path, const std::function<void()>& read) {
  if (!can_fork()) return;
  struct stat status {};
  const auto bytes = ::stat(path.c_str(), &status) == 0 ? static_cast<double>(status.st_size) : 0.0;
  const double limit_s = 10.0 + bytes / kSlowDisk_bytes_per_s;
  const pid_t child = ::fork();
  if (child < 0) return;
  if (child == 0) be_child(read, static_cast<rlim_t>(1.0 + bytes / kSlowProcessor_bytes_per_s));
  const auto handle = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  const bool is_late = handle >= 0 && !has_ended(handle, limit_s);
  if (is_late) ::kill(child, SIGKILL);
  int result = 0;
  while (::waitpid(child, &result, 0) < 0 && errno == EINTR) {
  }
  if (handle >= 0) ::close(handle);
  if (is_late || (WIFSIGNALED(result) && WTERMSIG(result) == SIGXCPU)) {
    throw_error(ErrorKind::data, "HDF5: reading took too long");
  }
  if (result != 0) throw_error(ErrorKind::data, "HDF5: reading crashed");
}

}  // namespace dp
