// For LD_PRELOAD: a file that exists but cannot be read.
//
//     LD_PRELOAD=.../libdp_read_faults.so DP_READ_FAULTS=read:5:.ckpt PROGRAM
//
// CALL:ERRNO:SUFFIX makes each such call fail with ERRNO for files whose path ends in SUFFIX. CALL
// is stat (also lstat and fstatat), open, fstat or read.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

// True, with errno set, if this call is to fail.
bool fails(std::string_view call, std::string_view path) {
  const char* const variable = std::getenv("DP_READ_FAULTS");
  if (variable == nullptr) return false;
  const std::string_view plan = variable;
  const std::size_t number = plan.find(':'), suffix = plan.rfind(':');
  if (number == suffix || plan.substr(0, number) != call) return false;
  if (!path.ends_with(plan.substr(suffix + 1))) return false;
  errno = std::atoi(plan.data() + number + 1);
  return true;
}

bool fails(std::string_view call, int descriptor) {
  std::array<char, 64> link = {};
  std::array<char, PATH_MAX> path = {};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  const long length =
      ::syscall(SYS_readlinkat, AT_FDCWD, link.data(), path.data(), path.size() - 1);
  return length > 0 && fails(call, {path.data(), static_cast<std::size_t>(length)});
}

}  // namespace

// Every function has the name and the form of the C library's.
extern "C" {

int fstatat(int folder, const char* name, struct stat* status, int flags) {
  if (fails("stat", std::string_view(name))) return -1;
  return static_cast<int>(::syscall(SYS_newfstatat, folder, name, status, flags));
}
int stat(const char* name, struct stat* status) { return fstatat(AT_FDCWD, name, status, 0); }
int lstat(const char* name, struct stat* status) {
  return fstatat(AT_FDCWD, name, status, AT_SYMLINK_NOFOLLOW);
}
int fstat(int descriptor, struct stat* status) {
  if (fails("fstat", descriptor)) return -1;
  return static_cast<int>(::syscall(SYS_fstat, descriptor, status));
}
ssize_t read(int descriptor, void* data, size_t bytes) {
  if (fails("read", descriptor)) return -1;
  return ::syscall(SYS_read, descriptor, data, bytes);
}
int open(const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (fails("open", std::string_view(name))) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, name, flags, mode));
}

}  // extern "C"
