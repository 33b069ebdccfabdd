#include "app/dptrun/dptrun_attempt.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kLook = 100ms;
// mpirun gets this time to end after a rank has reported its end.
constexpr auto kPatience = 10s;
// mpirun gets this time to end after SIGTERM.
constexpr auto kPatienceAfterSignal = 4s;
constexpr auto kHangup = 2s;
// A run that is not known to train gets this time to end, or to report that it trains.
constexpr auto kPatienceBeforeTraining = 2s;

std::uint64_t number_in(std::string_view words) {
  std::uint64_t number = 0;
  const std::size_t blank = words.rfind(' ');
  if (blank != std::string_view::npos) {
    std::from_chars(words.data() + blank + 1, words.data() + words.size(), number);
  }
  return number;
}

class Attempt {
 public:
  Attempt(const AttemptRequest& request, StopSignals& signals)
      : request_(request), signals_(signals), session_(request.words) {
    for (Stream* stream : {&output_, &errors_}) {
      ::fcntl(stream->from, F_SETFL, ::fcntl(stream->from, F_GETFL) | O_NONBLOCK);
    }
  }

  AttemptReport run() {
    while (!session_.status()) {
      wait_for_something();
      obey_signals();
      ask_caller();
      check_deadlines();
    }
    report_.end = has_been_killed_for_silence_ ? last_mark_ : Clock::now();
    const int status = *session_.status();
    session_.end();
    pass_the_rest();
    explain(status);
    return report_;
  }

 private:
  struct Stream {
    int from, to;
    MarkFilter filter;
    bool is_open = true;
    std::string pending =
        {};  // read but not yet written, because nobody reads this program's output

    // The event to wait for.
    [[nodiscard]] pollfd next() const {
      if (!pending.empty()) return {to, POLLOUT, 0};
      return {is_open ? from : -1, POLLIN, 0};
    }
  };

  void wait_for_something() {
    const Clock::time_point before = Clock::now();
    // While nobody reads this program's output, the run's signs of life wait unread in the pipe.
    // The run is then not silent.
    const bool is_held_up = !output_.pending.empty() || !errors_.pending.empty();
    std::array<pollfd, 3> streams = {
        {{signals_.stream(), POLLIN, 0}, output_.next(), errors_.next()}};
    ::poll(streams.data(), streams.size(), static_cast<int>(kLook.count()));
    pass(output_);
    pass(errors_);
    if (is_held_up) last_mark_ += Clock::now() - before;
  }

  // After the session's end, passes on the remaining output. A second signal stops this.
  void pass_the_rest() {
    for (int round = 0; round < 2; ++round) {
      while (signals_.count() < 2) {
        const bool has_passed = pass(output_);
        if (pass(errors_) || has_passed) continue;
        if (output_.pending.empty() && errors_.pending.empty()) break;
        wait_for_something();
      }
      for (Stream* stream : {&output_, &errors_}) stream->pending += stream->filter.rest();
    }
  }

  // Writes only what does not block, so that signals and deadlines are seen. Returns whether
  // something was written.
  static bool write_pending(Stream& stream) {
    pollfd ready = {stream.to, POLLOUT, 0};
    if (stream.pending.empty() || ::poll(&ready, 1, 0) <= 0) return false;
    const std::size_t size = std::min<std::size_t>(stream.pending.size(), PIPE_BUF);
    const ssize_t written = ::write(stream.to, stream.pending.data(), size);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) return false;
    // If the reader has gone, the text is dropped, and training goes on.
    stream.pending.erase(0, written <= 0 ? std::string::npos : static_cast<std::size_t>(written));
    return true;
  }

  // Returns whether there was something to pass on.
  bool pass(Stream& stream) {
    if (!stream.pending.empty()) return write_pending(stream);
    std::array<char, 16384> piece;
    if (!stream.is_open) return false;
    const ssize_t count = ::read(stream.from, piece.data(), piece.size());
    if (count == 0) stream.is_open = false;
    if (count <= 0) return false;
    stream.pending = stream.filter.pass({piece.data(), static_cast<std::size_t>(count)});
    if (&stream == &errors_) look_for_victim(stream.pending);
    write_pending(stream);
    return true;
  }

  // "mpirun noticed that process rank 1 with PID 25 on node node2 exited on signal 9 (Killed)." In
  // Open MPI 5 the text begins with prterun.
  void look_for_victim(const std::string& text) {
    const std::size_t begin = text.find(" noticed that process rank ");
    if (begin == std::string::npos) return;
    int rank = 0;
    std::array<char, 256> host = {};
    if (std::sscanf(text.c_str() + begin,
                    " noticed that process rank %d with PID %*d on node %255s exited on", &rank,
                    host.data()) == 2) {
      victim_ = fmt::format("rank {} on host {}", rank, host.data());
    }
  }

  void take_mark(std::string_view words) {
    last_mark_ = Clock::now();
    report_.has_lived = true;
    if (request_.on_mark) request_.on_mark(words);
    if (words.starts_with("start")) {
      report_.first_step = report_.last_step = number_in(words);
    } else if (words.starts_with("step")) {
      report_.last_step = number_in(words);
      if (!has_stepped_ && request_.on_first_step) request_.on_first_step(*report_.last_step);
      has_stepped_ = true;
    } else if (words.starts_with("end") && !said_end_) {
      said_end_ = static_cast<int>(number_in(words));
      kill_at(Clock::now() + kPatience);
    }
  }

  void obey_signals() {
    const int count = signals_.count();
    if (count == 0 || count == obeyed_) return;
    const bool is_first = obeyed_ == 0 && count == 1;
    obeyed_ = count;
    if (is_first) {
      // mpirun passes SIGUSR1 on to all ranks, and gives them time. A rank that has not begun ends
      // at once. If no step is known, wait a little: training may have begun, although no mark of
      // a step has arrived.
      if (!report_.is_asked_to_end) session_.send(SIGUSR1);  // a second one would end it at once
      if (!report_.first_step) terminate_at_ = Clock::now() + kPatienceBeforeTraining;
      return;
    }
    terminate();
  }

  // Asks only after the first step, because a run that ended earlier would have done nothing.
  void ask_caller() {
    if (!has_stepped_ || obeyed_ > 0 || report_.is_asked_to_end || said_end_) return;
    if (!request_.must_end || !request_.must_end()) return;
    report_.is_asked_to_end = true;
    session_.send(SIGUSR1);
  }

  void terminate() {
    terminate_at_.reset();
    session_.send(SIGTERM);
    kill_at(Clock::now() + kPatienceAfterSignal);
  }

  void kill_at(Clock::time_point when) {
    if (!kill_at_ || when < *kill_at_) kill_at_ = when;
  }

  void check_deadlines() {
    const Clock::time_point now = Clock::now();
    if (report_.first_step) terminate_at_.reset();
    if (terminate_at_ && now > *terminate_at_) terminate();
    if (now - last_mark_ > std::chrono::duration<double>(request_.silence_s)) {
      has_been_killed_for_silence_ = true;
      session_.end();
    } else if (kill_at_ && now > *kill_at_) {
      has_been_killed_late_ = true;
      session_.end();
    }
  }

  void explain(int status) {
    const bool is_signal = WIFSIGNALED(status);
    const int code = is_signal ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    // If mpirun had to be killed after the end, the exit code that dptrain reported counts.
    const bool counts_what_was_said =
        said_end_ && (has_been_killed_late_ || (code != 0 && *said_end_ != 0));
    report_.exit_code = counts_what_was_said ? *said_end_ : code;
    report_.is_killed = !counts_what_was_said && (is_signal || report_.exit_code == 128 + SIGKILL);
    if (has_been_killed_for_silence_) {
      report_.why = fmt::format("no sign of life for {:g} s", request_.silence_s);
    } else if (has_been_killed_late_ && said_end_) {
      report_.why = fmt::format("exit code {}, but mpirun did not end by itself", *said_end_);
    } else if (is_signal) {
      report_.why = "mpirun was killed by " + signal_text(WTERMSIG(status));
    } else if (report_.exit_code > 128) {
      report_.why =
          fmt::format("{} was killed by {}", victim_, signal_text(report_.exit_code - 128));
    } else {
      report_.why = fmt::format("exit code {}", report_.exit_code);
    }
  }

  const AttemptRequest& request_;
  StopSignals& signals_;
  Session session_;
  AttemptReport report_;
  Clock::time_point last_mark_ = Clock::now();
  std::optional<Clock::time_point> terminate_at_, kill_at_;
  std::optional<int> said_end_;
  std::string victim_ = "a rank";
  int obeyed_ = 0;
  bool has_stepped_ = false, has_been_killed_for_silence_ = false, has_been_killed_late_ = false;
  Stream output_{session_.output(), STDOUT_FILENO,
                 MarkFilter([this](std::string_view words) { take_mark(words); })};
  Stream errors_{session_.errors(), STDERR_FILENO,
                 MarkFilter([this](std::string_view words) { take_mark(words); })};
};

}  // namespace

StopSignals::StopSignals(const std::vector<int>& more) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  // SIGHUP arrives when the terminal is closed. Under nohup it is ignored, and it stays ignored.
  struct sigaction hangup = {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  for (const int signal : more) sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  stream_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (stream_ < 0) throw_error(ErrorKind::internal, "no signals: {}", ::strerror(errno));
}

StopSignals::~StopSignals() { ::close(stream_); }

int StopSignals::count() {
  signalfd_siginfo signal;
  while (::read(stream_, &signal, sizeof signal) == sizeof signal) {
    // The kernel, the shell and the end of the user's session each send a SIGHUP when a terminal is
    // closed. Together they count as one request.
    if (signal.ssi_signo == SIGHUP) {
      if (count_ > 0) continue;
      hangup_ = Clock::now();
    } else if (hangup_ && Clock::now() - *hangup_ < kHangup) {
      continue;
    }
    ++count_;
    last_ = static_cast<int>(signal.ssi_signo);
  }
  return count_;
}

AttemptReport run_attempt(const AttemptRequest& request, StopSignals& signals) {
  return Attempt(request, signals).run();
}

std::string signal_text(int signal) {
  const char* text = ::strsignal(signal);
  return fmt::format("signal {} ({})", signal, text == nullptr ? "unknown" : text);
}

}  // namespace dp
