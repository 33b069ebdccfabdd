#include "kernels/base/standard_streams.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace dp {
namespace {

bool fails_as_if_closed(int stream) {
  char letter = 'x';
  errno = 0;
  const ssize_t moved = stream == 0 ? ::read(stream, &letter, 1) : ::write(stream, &letter, 1);
  return moved == -1 && errno == EBADF;
}

// Runs in a process in which the descriptors in `closed` (bit 0: standard input, ...) are closed.
// Returns what is wrong after the call as an exit code; 0: nothing.
int verdict(int closed) {
  int ends[2];
  if (::pipe(ends) != 0) return 1;
  for (int stream = 0; stream < 3; ++stream) {
    ::dup2(ends[stream == 0 ? 0 : 1], stream);
    if ((closed & (1 << stream)) != 0) ::close(stream);
  }
  static_cast<void>(!::write(ends[1], "x", 1));
  open_standard_streams();
  const int next = ::open("/dev/null", O_RDONLY);
  if (next < 3) return 2;
  for (int stream = 0; stream < 3; ++stream) {
    const bool was_closed = (closed & (1 << stream)) != 0;
    if (fails_as_if_closed(stream) != was_closed) return 10 + stream;
    // Programs that the process starts (exec) need them, too.
    if ((::fcntl(stream, F_GETFD) & FD_CLOEXEC) != 0) return 20 + stream;
  }
  return 0;
}

TEST(StandardStreams, AreOpenInAllEightCases) {
  for (int closed = 0; closed < 8; ++closed) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(verdict(closed));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "closed: " << closed;
  }
}

}  // namespace
}  // namespace dp
