#include "kernels/base/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "kernels/base/error.hpp"

namespace dp {

void open_standard_streams() noexcept {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // open() takes the lowest free number. All lower descriptors are open, so open() takes
    // `stream`.
    static_cast<void>(::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

void check_output() {
  std::cout.flush();
  errno = 0;
  const bool is_complete = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (is_complete || errno == EPIPE) return;
  // The reason for an earlier failure was not kept, so try again to get it.
  if (errno == 0 && ::write(STDOUT_FILENO, "\n", 1) > 0) errno = 0;
  if (errno == EPIPE) return;
  throw_error(ErrorKind::data, "standard output cannot be written{}",
              errno == 0 ? "" : fmt::format(": {}", std::strerror(errno)));
}

}  // namespace dp
