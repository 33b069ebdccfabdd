#include "app/stop_notice.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <string_view>

#include "app/process.hpp"

namespace dp {
namespace {

// All that the handler may use: it must not allocate, lock or print through a library.
constexpr std::size_t kMostPath = 500;
std::array<char, kMostPath> log_path = {};
std::atomic<std::size_t> log_length = 0;  // set after the path
std::atomic<std::size_t> epoch_now = 0, all_epochs = 0, step_now = 0, all_steps = 0;
std::atomic<bool> speaks = false, has_spoken = false, is_on_terminal = false;
std::atomic<int> holds = 0, pending_code = 0;
std::atomic<int> line_stream = STDERR_FILENO;  // where the line goes
struct sigaction before_interrupt, before_terminate;

static_assert(std::atomic<std::size_t>::is_always_lock_free);

// Builds a line without allocating memory.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    const std::size_t count = std::min(text.size(), text_.size() - size_);
    std::memcpy(text_.data() + size_, text.data(), count);
    size_ += count;
    return *this;
  }
  Line& operator<<(std::size_t number) {
    char digits[24];
    const auto end = std::to_chars(std::begin(digits), std::end(digits), number).ptr;
    return *this << std::string_view(digits, static_cast<std::size_t>(end - digits));
  }
  void write(int stream) const {
    const char* at = text_.data();
    for (std::size_t left = size_; left > 0;) {
      const ssize_t written = ::write(stream, at, left);
      if (written <= 0) return;
      at += written;
      left -= static_cast<std::size_t>(written);
    }
  }

 private:
  std::array<char, 1024> text_;
  std::size_t size_ = 0;
};

void say(int signal) {
  Line line;
  if (is_on_terminal) line << "\n";  // after a line that is rewritten in place
  line << "dptrain: stopped by " << (signal == SIGINT ? "Ctrl-C (SIGINT)" : "SIGTERM");
  if (epoch_now == 0) {
    line << " before the first step; ";
  } else {
    line << " in epoch " << epoch_now << " of " << all_epochs << ", step " << step_now << " of "
         << all_steps << "; ";
  }
  if (log_length == 0) {
    line << "there is no log\n";
  } else {
    line << "the log " << std::string_view(log_path.data(), log_length)
         << " can be read and holds the epochs before\n";
  }
  line.write(line_stream);
}

void handle(int signal) {
  const int code = 128 + signal;
  if (speaks && !has_spoken.exchange(true)) say(signal);
  // A second signal means that the user does not want to wait.
  if (holds == 0 || pending_code.exchange(code) != 0) ::_exit(code);
}

// mpirun sometimes loses what a rank writes just before it is killed. So if mpirun's own standard
// error is a terminal or a pipe, the line goes there.
int open_stream() {
  const int file = open_launchers_stream(STDERR_FILENO);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) return STDERR_FILENO;
  if (S_ISCHR(status.st_mode) || S_ISFIFO(status.st_mode)) return file;
  ::close(file);
  return STDERR_FILENO;
}

}  // namespace

StopNotice::StopNotice(bool is_speaker) {
  speaks = is_speaker;
  if (is_speaker) line_stream = open_stream();
  is_on_terminal = ::isatty(line_stream) != 0;
  struct sigaction action = {};
  action.sa_handler = handle;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &before_interrupt);
  ::sigaction(SIGTERM, &action, &before_terminate);
}

StopNotice::~StopNotice() {
  ::sigaction(SIGINT, &before_interrupt, nullptr);
  ::sigaction(SIGTERM, &before_terminate, nullptr);
  if (const int file = line_stream.exchange(STDERR_FILENO); file != STDERR_FILENO) ::close(file);
}

void StopNotice::set_log(const std::string& path) {
  log_length = 0;
  const std::size_t length = std::min(path.size(), kMostPath);
  std::memcpy(log_path.data(), path.data(), length);
  log_length = length;
}

void StopNotice::set_place(std::size_t epoch, std::size_t epochs, std::size_t step,
                           std::size_t steps) {
  epoch_now = epoch;
  all_epochs = epochs;
  step_now = step;
  all_steps = steps;
}

StopNotice::Hold::Hold() { ++holds; }

StopNotice::Hold::~Hold() {
  if (--holds == 0 && pending_code != 0) ::_exit(pending_code);
}

}  // namespace dp
