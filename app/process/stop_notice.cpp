#include "app/process/stop_notice.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "app/process/process.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Everything that the handler uses: it must not allocate, lock or print through a library.
constexpr std::size_t kMostPath = 500;
struct Path {
  std::array<char, kMostPath> text = {};
  std::atomic<std::size_t> length = 0;  // set after the text

  void set(const std::string& path) {
    length = 0;
    const std::size_t size = std::min(path.size(), kMostPath);
    std::memcpy(text.data(), path.data(), size);
    length = size;
  }
  [[nodiscard]] std::string_view view() const { return {text.data(), length}; }
};
Path log_path, checkpoint_path;
std::atomic<std::size_t> epoch_now = 0, all_epochs = 0, step_now = 0, all_steps = 0;
std::atomic<bool> has_wish = false, is_over = false, speaks = false, is_on_terminal = false,
                  is_under_mpirun = false;
std::atomic<int> holds = 0, pending_code = 0;
std::atomic<int> line_stream = STDERR_FILENO;  // where the line goes
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1};
std::array<struct sigaction, kSignals.size()> before;  // what the signals did before

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

std::string_view name_of(int signal) {
  if (signal == SIGINT) return "Ctrl-C (SIGINT)";
  return signal == SIGTERM ? "SIGTERM" : "SIGUSR1";
}

void say(int signal, bool at_once) {
  Line line;
  if (is_on_terminal) line << "\n";  // after a line that is rewritten in place
  line << "dptrain: " << (at_once ? "stopped by " : "") << name_of(signal);
  if (epoch_now == 0) {
    line << " before the first step";
  } else {
    line << " in epoch " << epoch_now << " of " << all_epochs << ", step " << step_now << " of "
         << all_steps;
  }
  if (!at_once) {
    line << ": the run stops after this step; "
         << (signal == SIGTERM && is_under_mpirun
                 ? "mpirun may kill it a second after SIGTERM, but gives it time after SIGUSR1"
                 : "a second signal stops it at once");
  }
  line << "; ";
  if (log_path.length == 0) {
    line << "there is no log";
  } else {
    line << "the log " << log_path.view() << " is readable and holds the earlier epochs";
  }
  if (checkpoint_path.length > 0) line << "; checkpoints are in " << checkpoint_path.view();
  line << "\n";
  line.write(line_stream);
}

void end(int code) {
  // One more signal means that the user does not want to wait.
  if (holds == 0 || pending_code.exchange(code) != 0) ::_exit(code);
}

void handle(int signal) {
  const int error = errno;
  const bool is_second = has_wish.exchange(true);
  if (is_over) {
    if (is_second) ::_exit(128 + signal);
    return;
  }
  const bool at_once = is_second || epoch_now == 0;
  if (speaks && pending_code == 0) say(signal, at_once);
  if (is_second) {
    end(128 + signal);
  } else if (at_once) {
    end(static_cast<int>(ErrorKind::stopped));
  }
  errno = error;
}

// mpirun sometimes loses the last text of a rank that it kills. If mpirun's own standard error is a
// terminal or a pipe, the line therefore goes there.
int open_stream() {
  const int file = open_launchers_stream(STDERR_FILENO);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) return STDERR_FILENO;
  if (S_ISCHR(status.st_mode) || S_ISFIFO(status.st_mode)) return file;
  ::close(file);
  return STDERR_FILENO;
}

}  // namespace

StopNotice::StopNotice() {
  is_under_mpirun = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
  struct sigaction action = {};
  action.sa_handler = handle;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaddset(&action.sa_mask, signal);  // no nested handlers
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &action, &before[i]);
  }
}

StopNotice::~StopNotice() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before[i], nullptr);
  if (const int file = line_stream.exchange(STDERR_FILENO); file != STDERR_FILENO) ::close(file);
}

void StopNotice::speak() {
  line_stream = open_stream();
  is_on_terminal = ::isatty(line_stream) != 0;
  speaks = true;
}

void StopNotice::run_is_over() { is_over = true; }

const std::atomic<bool>& StopNotice::wish() { return has_wish; }

void StopNotice::set_log(const std::string& path) { log_path.set(path); }

void StopNotice::set_checkpoints(const std::string& folder) { checkpoint_path.set(folder); }

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
