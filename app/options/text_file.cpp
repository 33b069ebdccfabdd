#include "app/options/text_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;

class OpenText {
 public:
  // Without O_NONBLOCK, opening a pipe waits for its writer.
  explicit OpenText(const std::string& path)
      : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)) {
    struct stat status {};
    if (file_ < 0 || ::fstat(file_, &status) != 0) {
      fail();
      return;
    }
    if (S_ISDIR(status.st_mode)) {
      reason_ = "is a folder; must be the path of a file";
      return;
    }
    is_pipe_ = S_ISFIFO(status.st_mode);
    if (!is_pipe_) ::fcntl(file_, F_SETFL, ::fcntl(file_, F_GETFL) & ~O_NONBLOCK);
  }
  ~OpenText() {
    if (file_ >= 0) ::close(file_);
  }
  OpenText(const OpenText&) = delete;
  OpenText& operator=(const OpenText&) = delete;

  // Why the file cannot be read; empty if it can.
  [[nodiscard]] const std::string& reason() const { return reason_; }

  // Appends the next bytes; false at the end and after a failure.
  bool append_to(std::string& text, const PipePatience& patience) {
    std::array<char, 4096> bytes;
    const Clock::time_point begin = Clock::now();
    while (reason_.empty()) {
      const bool has_ended = is_pipe_ && wait_for_pipe();
      const ssize_t count = ::read(file_, bytes.data(), bytes.size());
      if (count > 0) {
        has_writer_ = true;
        text.append(bytes.data(), static_cast<std::size_t>(count));
        return true;
      }
      if (count == 0 && (!is_pipe_ || has_ended || has_writer_)) return false;
      if (count < 0 && errno == EAGAIN) {
        has_writer_ = true;
      } else if (count < 0 && errno != EINTR) {
        fail();
      }
      if (is_pipe_) check_patience(std::chrono::duration<double>(Clock::now() - begin), patience);
    }
    return false;
  }

 private:
  void fail() { reason_ = fmt::format("cannot be read: {}", std::strerror(errno)); }

  // Waits a moment. Returns whether the last writer of the pipe has gone; false if there was none
  // yet.
  bool wait_for_pipe() const {
    pollfd event = {.fd = file_, .events = POLLIN, .revents = 0};
    return ::poll(&event, 1, 100) > 0 && (event.revents & POLLHUP) != 0;
  }

  void check_patience(std::chrono::duration<double> waited, const PipePatience& patience) {
    if (has_writer_ ? waited.count() < patience.silent_s
                    : waited.count() < patience.without_writer_s) {
      return;
    }
    reason_ = has_writer_ ? fmt::format("is a pipe whose writer has been silent for {} s",
                                        patience.silent_s)
                          : fmt::format("is a pipe that no program has opened for writing in {} s",
                                        patience.without_writer_s);
  }

  int file_ = -1;
  bool is_pipe_ = false, has_writer_ = false;
  std::string reason_;
};

}  // namespace

bool is_pipe(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode);
}

std::string read_text_file(std::string_view option, const std::string& path, std::size_t most_bytes,
                           std::string_view kind, const PipePatience& patience) {
  OpenText file(path);
  std::string text;
  while (text.size() <= most_bytes && file.append_to(text, patience)) {
  }
  if (!file.reason().empty()) {
    throw_error(ErrorKind::usage, "{} {}: {}", option, shown(path), file.reason());
  }
  if (text.size() > most_bytes) {
    throw_error(ErrorKind::usage, "{} {}: is longer than {} bytes; is it {}?", option, shown(path),
                most_bytes, kind);
  }
  return text;
}

}  // namespace dp
