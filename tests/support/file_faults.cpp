// The library of file_faults.hpp. It defines the C library's functions that change files under
// their own names, so that a program finds these first.
//
// All calls go directly to the kernel, so the library works before other libraries are set up, and
// in signal handlers. It does not see writes by the C library's own streams (FILE); it sees
// std::ofstream.
#include "tests/support/file_faults.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

using dp::FileFault;

struct Plan {
  std::array<char, PATH_MAX> below = {};
  int list = -1;
  long at = 0;
  FileFault fault = FileFault::none;
  const Plan* before = nullptr;
};

// Other threads, such as MPI's, read the plan at any time. A plan therefore never changes and is
// never freed (each points to the previous one, so none counts as a leak), and its list stays open.
constexpr Plan kNoPlan = {};
std::atomic<const Plan*> current = &kNoPlan;
std::atomic<long> calls = 0;
std::atomic<bool> is_full = false;
std::array<std::atomic<bool>, 4096> has_written = {};  // by descriptor

void set_plan(const char* below, long at, FileFault fault, const char* list) {
  static const Plan* last = nullptr;
  current = &kNoPlan;
  Plan& next = *new Plan;
  next.before = last;
  last = &next;
  if (*list != '\0') {
    const long opened =
        ::syscall(SYS_openat, AT_FDCWD, list, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0666);
    // A number that no program closes by mistake.
    next.list = static_cast<int>(::syscall(SYS_fcntl, opened, F_DUPFD_CLOEXEC, 900));
    ::syscall(SYS_close, opened);
  }
  next.at = at;
  next.fault = fault;
  std::strncpy(next.below.data(), below, next.below.size() - 1);
  calls = 0;
  is_full = false;
  current = &next;
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

__attribute__((constructor)) void start() {
  const std::string_view rank = variable("DP_FAULTS_RANK"), kind = variable("DP_FAULTS_KIND");
  if (!rank.empty() && rank != variable("OMPI_COMM_WORLD_RANK")) return;
  FileFault fault = FileFault::none;
  for (const auto& [name, its] : dp::kFileFaults) {
    if (kind == name) fault = its;
  }
  set_plan(variable("DP_FAULTS_BELOW"), std::atol(variable("DP_FAULTS_AT")), fault,
           variable("DP_FAULTS_LIST"));
}

// Without a list the number of calls is printed.
__attribute__((destructor)) void end() {
  if (*variable("DP_FAULTS_BELOW") == '\0' || current.load()->below[0] == '\0') return;
  if (current.load()->list >= 0) return;
  std::array<char, 64> line = {};
  const int length =
      std::snprintf(line.data(), line.size(), "file faults: %ld calls\n", calls.load());
  ::syscall(SYS_write, STDERR_FILENO, line.data(), length);
}

[[noreturn]] void die() {
  ::syscall(SYS_kill, ::getpid(), SIGKILL);
  while (true) ::pause();
}

using Path = std::array<char, PATH_MAX>;

// The path of a descriptor, or of a path relative to one; empty if it is unknown.
std::string_view path_of(int descriptor, Path& path) {
  if (descriptor == AT_FDCWD) {
    const long length = ::syscall(SYS_getcwd, path.data(), path.size());
    return length > 1 ? std::string_view(path.data(), static_cast<std::size_t>(length) - 1) : "";
  }
  std::array<char, 64> link = {};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  const long length =
      ::syscall(SYS_readlinkat, AT_FDCWD, link.data(), path.data(), path.size() - 1);
  return length > 0 ? std::string_view(path.data(), static_cast<std::size_t>(length)) : "";
}

std::string_view path_of(int folder, const char* name, Path& path) {
  if (name == nullptr) return {};
  const std::string_view word = name;
  std::size_t length = 0;
  if (!word.starts_with('/')) {
    length = path_of(folder, path).size();
    if (length == 0 || length + 1 + word.size() >= path.size()) return {};
    path[length++] = '/';
  }
  if (length + word.size() >= path.size()) return {};
  std::memcpy(path.data() + length, word.data(), word.size());
  return {path.data(), length + word.size()};
}

bool counts(std::string_view path, const Plan& plan = *current) {
  const std::string_view below = plan.below.data();
  if (below.empty() || path.empty()) return false;
  return path.starts_with(below) ||
         (below.ends_with('/') && path == below.substr(0, below.size() - 1));
}

enum class Needs { room, nothing };

// Makes the call, or what the plan has instead. `half` makes half of a write, if the call is one.
template <class Call, class Half>
long made(const char* name, std::string_view path, Needs needs, Call call, Half half) {
  const Plan& plan = *current;
  if (!counts(path, plan)) return call();
  const long number = ++calls;
  if (plan.list >= 0) {
    std::array<char, PATH_MAX + 64> line = {};
    const int length = std::snprintf(line.data(), line.size(), "%ld %s %.*s\n", number, name,
                                     static_cast<int>(path.size()), path.data());
    ::syscall(SYS_write, plan.list, line.data(), length);
  }
  const auto no_room = [] {
    errno = ENOSPC;
    return -1L;
  };
  if (is_full && needs == Needs::room) return no_room();
  if (number != plan.at) return call();
  switch (plan.fault) {
    case FileFault::none:
      return call();
    case FileFault::kill_before:
      die();
    case FileFault::kill_after:
      call();
      die();
    case FileFault::kill_within:
      half();
      die();
    case FileFault::full:
      is_full = true;
      return no_room();
    case FileFault::short_write: {
      is_full = true;
      const long written = half();
      return written > 0 ? written : no_room();
    }
    case FileFault::once:
      return no_room();
  }
  return call();
}

template <class Call>
long made(const char* name, std::string_view path, Needs needs, Call call) {
  return made(name, path, needs, call, [] { return 0L; });
}

template <class Call, class Half>
ssize_t written(const char* name, int descriptor, Call call, Half half) {
  Path path;
  const std::string_view its = path_of(descriptor, path);
  const auto slot = static_cast<std::size_t>(descriptor);
  if (slot < has_written.size() && counts(its)) has_written[slot] = true;
  return made(name, its, Needs::room, call, half);
}

int opened(int folder, const char* name, int flags, mode_t mode) {
  const auto call = [&] { return ::syscall(SYS_openat, folder, name, flags, mode); };
  if ((flags & O_CREAT) == 0) return static_cast<int>(call());
  Path path;
  return static_cast<int>(made("create", path_of(folder, name, path), Needs::room, call));
}

// The mode is there only for a file that may be created.
mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

void dp::set_file_faults(const char* below, long at, FileFault fault, const char* list) {
  set_plan(below, at, fault, list);
}

long dp::counted_file_calls() { return calls; }

// Every function has the name and the form of the C library's.
extern "C" {

#define DP_OPEN(function)                          \
  int function(const char* name, int flags, ...) { \
    va_list arguments;                             \
    va_start(arguments, flags);                    \
    const mode_t mode = mode_of(flags, arguments); \
    va_end(arguments);                             \
    return opened(AT_FDCWD, name, flags, mode);    \
  }
DP_OPEN(open)
DP_OPEN(open64)
#define DP_OPENAT(function)                                    \
  int function(int folder, const char* name, int flags, ...) { \
    va_list arguments;                                         \
    va_start(arguments, flags);                                \
    const mode_t mode = mode_of(flags, arguments);             \
    va_end(arguments);                                         \
    return opened(folder, name, flags, mode);                  \
  }
DP_OPENAT(openat)
DP_OPENAT(openat64)
int creat(const char* name, mode_t mode) {
  return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  return written(
      "write", descriptor, [&] { return ::syscall(SYS_write, descriptor, data, bytes); },
      [&] { return ::syscall(SYS_write, descriptor, data, bytes / 2); });
}

#define DP_PWRITE(function)                                                        \
  ssize_t function(int descriptor, const void* data, size_t bytes, off_t at) {     \
    return written(                                                                \
        "pwrite", descriptor,                                                      \
        [&] { return ::syscall(SYS_pwrite64, descriptor, data, bytes, at); },      \
        [&] { return ::syscall(SYS_pwrite64, descriptor, data, bytes / 2, at); }); \
  }
DP_PWRITE(pwrite)
DP_PWRITE(pwrite64)

ssize_t writev(int descriptor, const iovec* parts, int count) {
  return written(
      "writev", descriptor, [&] { return ::syscall(SYS_writev, descriptor, parts, count); },
      [&] {
        return count < 1 ? 0L
                         : ::syscall(SYS_write, descriptor, parts->iov_base, parts->iov_len / 2);
      });
}

#define DP_PWRITEV(function)                                                            \
  ssize_t function(int descriptor, const iovec* parts, int count, off_t at) {           \
    return written(                                                                     \
        "pwritev", descriptor,                                                          \
        [&] { return ::syscall(SYS_pwritev, descriptor, parts, count, at, at >> 32); }, \
        [&] {                                                                           \
          return count < 1 ? 0L                                                         \
                           : ::syscall(SYS_pwrite64, descriptor, parts->iov_base,       \
                                       parts->iov_len / 2, at);                         \
        });                                                                             \
  }
DP_PWRITEV(pwritev)
DP_PWRITEV(pwritev64)

#define DP_OF_DESCRIPTOR(function, parameters, name, needs, ...)                \
  int function parameters {                                                     \
    Path path;                                                                  \
    return static_cast<int>(made(name, path_of(descriptor, path), Needs::needs, \
                                 [&] { return ::syscall(__VA_ARGS__); }));      \
  }
DP_OF_DESCRIPTOR(ftruncate, (int descriptor, off_t size), "ftruncate", room, SYS_ftruncate,
                 descriptor, size)
DP_OF_DESCRIPTOR(ftruncate64, (int descriptor, off_t size), "ftruncate", room, SYS_ftruncate,
                 descriptor, size)
DP_OF_DESCRIPTOR(fallocate, (int descriptor, int mode, off_t at, off_t size), "fallocate", room,
                 SYS_fallocate, descriptor, mode, at, size)
DP_OF_DESCRIPTOR(fsync, (int descriptor), "fsync", nothing, SYS_fsync, descriptor)
DP_OF_DESCRIPTOR(fdatasync, (int descriptor), "fdatasync", nothing, SYS_fdatasync, descriptor)

int posix_fallocate(int descriptor, off_t at, off_t size) {
  return fallocate(descriptor, 0, at, size) == 0 ? 0 : errno;
}

int close(int descriptor) {
  const auto call = [&] { return ::syscall(SYS_close, descriptor); };
  const auto slot = static_cast<std::size_t>(descriptor);
  if (slot >= has_written.size() || !has_written[slot].exchange(false)) {
    return static_cast<int>(call());
  }
  Path path;
  const std::string_view its = path_of(descriptor, path);
  // Also a close that fails gives the descriptor back.
  bool is_closed = false;
  const long result = made("close", its, Needs::nothing, [&] {
    is_closed = true;
    return call();
  });
  if (!is_closed) {
    const int reason = errno;
    call();
    errno = reason;
  }
  return static_cast<int>(result);
}

// For calls with two paths: the new path counts, or else the old one.
#define DP_OF_PATHS(function, parameters, name, from_folder, from, to_folder, to, ...) \
  int function parameters {                                                            \
    Path path;                                                                         \
    std::string_view its = path_of(to_folder, to, path);                               \
    if (!counts(its)) its = path_of(from_folder, from, path);                          \
    return static_cast<int>(                                                           \
        made(name, its, Needs::nothing, [&] { return ::syscall(__VA_ARGS__); }));      \
  }
DP_OF_PATHS(rename, (const char* from, const char* to), "rename", AT_FDCWD, from, AT_FDCWD, to,
            SYS_rename, from, to)
DP_OF_PATHS(renameat, (int from_folder, const char* from, int to_folder, const char* to), "rename",
            from_folder, from, to_folder, to, SYS_renameat, from_folder, from, to_folder, to)
DP_OF_PATHS(renameat2,
            (int from_folder, const char* from, int to_folder, const char* to, unsigned flags),
            "rename", from_folder, from, to_folder, to, SYS_renameat2, from_folder, from, to_folder,
            to, flags)
DP_OF_PATHS(link, (const char* from, const char* to), "link", AT_FDCWD, from, AT_FDCWD, to,
            SYS_link, from, to)

#define DP_OF_PATH(function, parameters, name, needs, folder, its, ...)          \
  int function parameters {                                                      \
    Path path;                                                                   \
    return static_cast<int>(made(name, path_of(folder, its, path), Needs::needs, \
                                 [&] { return ::syscall(__VA_ARGS__); }));       \
  }
DP_OF_PATH(unlink, (const char* name), "unlink", nothing, AT_FDCWD, name, SYS_unlink, name)
DP_OF_PATH(unlinkat, (int folder, const char* name, int flags), "unlink", nothing, folder, name,
           SYS_unlinkat, folder, name, flags)
DP_OF_PATH(rmdir, (const char* name), "rmdir", nothing, AT_FDCWD, name, SYS_rmdir, name)
DP_OF_PATH(mkdir, (const char* name, mode_t mode), "mkdir", room, AT_FDCWD, name, SYS_mkdir, name,
           mode)
DP_OF_PATH(truncate, (const char* name, off_t size), "truncate", room, AT_FDCWD, name, SYS_truncate,
           name, size)

int remove(const char* name) {
  const int result = unlink(name);
  return result != 0 && errno == EISDIR ? rmdir(name) : result;
}

[[noreturn]] void _exit(int code) {
  end();
  while (true) ::syscall(SYS_exit_group, code);
}

}  // extern "C"
