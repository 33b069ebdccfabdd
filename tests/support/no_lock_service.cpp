// A file system without a lock service, such as NFS may be, for LD_PRELOAD: flock() fails.
#include <sys/file.h>

#include <cerrno>

extern "C" int flock(int, int) noexcept {
  errno = ENOLCK;
  return -1;
}
