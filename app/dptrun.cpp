// dptrun starts dptrain with mpirun. If the run dies, dptrun starts it again from its newest
// checkpoint.
//
// dptrun knows three things about a run: its exit code, the marks in its output (run_status.hpp),
// and which hosts answer. It computes nothing and does not use MPI itself.
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "app/dptrun/dptrun_attempt.hpp"
#include "app/dptrun/dptrun_hosts.hpp"
#include "app/dptrun/dptrun_options.hpp"
#include "app/dptrun/dptrun_status.hpp"
#include "app/dptrun/dptrun_watch.hpp"
#include "app/process/run_status.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/file_size_limit.hpp"
#include "kernels/base/standard_streams.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kAnswer_s = 10;
constexpr double kFirstPause_s = 0.5, kMostPause_s = 60;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  std::fprintf(stderr, "dptrun: %s\n", fmt::format(format, std::forward<Args>(args)...).c_str());
}

class Supervisor {
 public:
  explicit Supervisor(const dp::DptrunOptions& options)
      : options_(options), signals_(options.stop_signals) {
    progress_.command = fmt::format("{}", fmt::join(options.command, " "));
  }

  int run() {
    const int code = run_attempts();
    tell_recoveries();
    return code;
  }

 private:
  int run_attempts() {
    while (true) {
      if (attempts_ > 0) read_hosts_again();
      const std::optional<std::vector<dp::RunHost>> hosts = hosts_that_answer();
      if (!hosts) {
        if (!wait_for_hosts()) return stop_code();
        continue;
      }
      waits_ = 0;
      ++attempts_;
      progress_.state = "starts";
      progress_.hosts = dp::to_text(*hosts);
      progress_.ranks = dp::ranks_on(options_, *hosts);
      progress_.restarts = restarts_;
      progress_.steps_per_s = 0;
      pace_.begin_anew();
      status_.update(progress_);
      dp::HostWatch watch({.hostfile = options_.hostfile,
                           .hosts = options_.hosts,
                           .agent = dp::agent_of(options_),
                           .every_s = options_.join_after_s,
                           .answer_s = kAnswer_s,
                           .least = static_cast<std::size_t>(options_.min_hosts)},
                          *hosts);
      const dp::AttemptReport report = dp::run_attempt(
          {.words = dp::mpirun_words(options_, *hosts, attempts_ > 1),
           .silence_s = dp::silence_of(options_),
           .on_mark = [&](std::string_view words) { note_mark(words); },
           .on_first_step = [&](std::uint64_t steps) { note_recovery(steps, *hosts); },
           .must_end = [&] { return have_hosts_changed(watch); }},
          signals_);
      has_lived_ = has_lived_ || report.has_lived;
      if (const int signals = signals_.count(); signals > 0 && report.exit_code != 0) {
        // An mpirun that has not begun, or is about to end, dies of the SIGUSR1 that asks it to
        // stop.
        const bool is_by_wish = report.exit_code == 128 + SIGUSR1;
        if (signals > 1 || !report.first_step || is_by_wish) return stop_code();
        if (report.exit_code != static_cast<int>(dp::ErrorKind::stopped)) {
          say("{}; it is not restarted, because it was asked to stop", what_ended(report));
        }
        return report.exit_code;
      }
      if (report.exit_code == 0) return 0;
      if (!down_since_) down_since_ = report.end;
      // The hosts have changed: the run restarts at once, because nothing has failed.
      if (report.is_asked_to_end && report.exit_code == static_cast<int>(dp::ErrorKind::stopped)) {
        continue;
      }
      note_progress(report);
      const std::string what = what_ended(report);
      if (!may_start_again(report)) {
        say("{}; it is not restarted", what);
        return report.exit_code;
      }
      if (must_give_up(what)) return report.exit_code;
      if (!pause(what)) return stop_code();
    }
  }

  void note_mark(std::string_view words) {
    const std::size_t blank = std::min(words.find(' '), words.size());
    const std::string_view kind = words.substr(0, blank);
    const std::string value(words.substr(std::min(blank + 1, words.size())));
    if (kind == "plan") progress_.steps = std::strtoull(value.c_str(), nullptr, 10);
    if (kind == "images") progress_.images = value;
    if (kind == "start" || kind == "step") {
      progress_.state = "trains";
      progress_.step = std::strtoull(value.c_str(), nullptr, 10);
      pace_.add(progress_.step);
      progress_.steps_per_s = pace_.steps_per_s();
    }
    status_.update(progress_);
  }

  bool have_hosts_changed(dp::HostWatch& watch) {
    const auto change = watch.poll();
    if (!change) return false;
    say("{}; the run writes a checkpoint and goes on with {}", change->why,
        dp::to_text(change->hosts));
    return true;
  }

  // If the hostfile cannot be read, the hosts stay as they were.
  void read_hosts_again() {
    if (options_.hostfile.empty()) return;
    try {
      options_.hosts = dp::read_hostfile(options_.hostfile);
    } catch (const dp::Error&) {
    }
  }

  // Returns nothing if fewer hosts than --min-hosts answer.
  std::optional<std::vector<dp::RunHost>> hosts_that_answer() {
    if (options_.hosts.empty()) return options_.hosts;
    const std::vector<bool> answers =
        dp::ask_hosts(options_.hosts, dp::agent_of(options_), kAnswer_s);
    std::vector<dp::RunHost> hosts;
    std::string silent;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (answers[i]) {
        hosts.push_back(options_.hosts[i]);
      } else {
        silent += (silent.empty() ? "" : ", ") + options_.hosts[i].name;
      }
    }
    const bool is_enough = static_cast<std::int64_t>(hosts.size()) >= options_.min_hosts;
    if (!silent.empty()) {
      say("no answer from {}; {} of {} hosts answer, {} are needed (--min-hosts){}", silent,
          hosts.size(), options_.hosts.size(), options_.min_hosts,
          is_enough ? "; the run continues without the others, with the same global batch" : "");
    }
    if (!is_enough) return std::nullopt;
    return hosts;
  }

  void note_progress(const dp::AttemptReport& report) {
    if (!report.first_step || (furthest_start_ && *report.first_step <= *furthest_start_)) return;
    furthest_start_ = report.first_step;
    without_progress_ = 0;
  }

  std::string what_ended(const dp::AttemptReport& report) const {
    if (!report.last_step)
      return fmt::format("run {} ended before its first step: {}", attempts_, report.why);
    return fmt::format("run {} ended after step {} or later: {}", attempts_, *report.last_step,
                       report.why);
  }

  bool may_start_again(const dp::AttemptReport& report) {
    // If mpirun itself fails at once (a wrong host, too few slots), it has reported why, and a
    // restart would not help.
    if (!has_lived_ && !report.is_killed) return false;
    switch (static_cast<dp::ErrorKind>(report.exit_code)) {
      case dp::ErrorKind::usage:
      case dp::ErrorKind::data:
      case dp::ErrorKind::stopped:
        return false;
      case dp::ErrorKind::device:
      case dp::ErrorKind::internal:
        return ++doubtful_restarts_ <= 1;
      default:
        return true;
    }
  }

  bool must_give_up(const std::string& what) const {
    if (without_progress_ < options_.max_restarts) return false;
    say("{}; giving up after {} restart{} without progress (--max-restarts)", what,
        options_.max_restarts, options_.max_restarts == 1 ? "" : "s");
    return true;
  }

  // Reports what has happened and waits before the next run. Returns false if a signal asks to
  // stop.
  bool pause(const std::string& what) {
    const double pause_s = pause_after(without_progress_);
    ++without_progress_;
    say("{}; restarts from the newest checkpoint in {:g} s (restart {}, {} of {} without progress)",
        what, pause_s, ++restarts_, without_progress_, options_.max_restarts);
    return sleep(pause_s);
  }

  // Waits before the hosts are asked again. Such waits do not count as restarts, because nothing
  // was started. Their number is therefore not limited. Returns false if a signal asks to stop.
  bool wait_for_hosts() {
    const double pause_s = pause_after(waits_++);
    progress_.state = "waits for hosts";
    status_.update(progress_);
    say("too few hosts answer; asking again in {:g} s", pause_s);
    return sleep(pause_s);
  }

  bool sleep(double pause_s) {
    pollfd stream = {signals_.stream(), POLLIN, 0};
    ::poll(&stream, 1, static_cast<int>(pause_s * 1000));
    return signals_.count() == 0;
  }

  static double pause_after(std::int64_t times) {
    if (times == 0) return kFirstPause_s;
    return std::min(kMostPause_s, std::pow(2.0, static_cast<double>(times - 1)));
  }

  [[nodiscard]] int stop_code() {
    if (signals_.count() > 1) return 128 + signals_.last();
    say("stopped on request while no step was running; the same command with --resume continues");
    return static_cast<int>(dp::ErrorKind::stopped);
  }

  void note_recovery(std::uint64_t steps, const std::vector<dp::RunHost>& hosts) {
    if (!down_since_) return;
    recoveries_s_.push_back(seconds_since(*down_since_));
    down_since_.reset();
    const std::int64_t ranks = dp::ranks_on(options_, hosts);
    say("training continues with step {}{}, {:.1f} s after the previous run ended", steps,
        ranks > 0 ? fmt::format(" on {} ranks", ranks) : "", recoveries_s_.back());
  }

  void tell_recoveries() {
    if (recoveries_s_.empty()) return;
    std::sort(recoveries_s_.begin(), recoveries_s_.end());
    const auto at = [&](double share) {
      const auto last = static_cast<double>(recoveries_s_.size() - 1);
      return recoveries_s_[static_cast<std::size_t>(std::ceil(share * last))];
    };
    say("{} restart{}; from the end of a run to the next one's first step: median {:.1f} s, 99th "
        "percentile {:.1f} s, at most {:.1f} s",
        restarts_, restarts_ == 1 ? "" : "s", at(0.5), at(0.99), recoveries_s_.back());
  }

  dp::DptrunOptions options_;  // its hosts are from the last reading of the hostfile
  dp::StopSignals signals_;
  dp::StatusFile status_;
  dp::RunProgress progress_;
  dp::StepPace pace_;
  std::int64_t attempts_ = 0, restarts_ = 0;
  std::int64_t without_progress_ = 0;  // restarts since the last progress
  std::int64_t waits_ = 0;             // waits for hosts since enough of them last answered
  int doubtful_restarts_ = 0;          // after errors that will probably recur
  bool has_lived_ = false;
  std::optional<std::uint64_t> furthest_start_;
  std::optional<Clock::time_point> down_since_;
  std::vector<double> recoveries_s_;
};

int run(const std::vector<std::string>& arguments) {
  dp::survive_file_size_limit();
  if (arguments == std::vector<std::string>{"status"}) {
    std::fputs(dp::status_table().c_str(), stdout);
    dp::check_output();
    return EXIT_SUCCESS;
  }
  const dp::DptrunOptions options = dp::parse_dptrun(arguments);
  if (options.asks_for_help || options.asks_for_version) {
    std::fputs(options.asks_for_help ? dp::dptrun_help().c_str() : "dptrun " DP_VERSION "\n",
               stdout);
    dp::check_output();
    return EXIT_SUCCESS;
  }
  ::setenv(dp::kStatusVariable, "1", 1);
  ::signal(SIGPIPE, SIG_IGN);  // training goes on without a reader of the output
  return Supervisor(options).run();
}

}  // namespace

int main(int argc, char** argv) {
  dp::open_standard_streams();
  try {
    return run({argv + 1, argv + argc});
  } catch (...) {
    std::string message;
    const int code = dp::exit_code_of_current_exception(message);
    std::fprintf(stderr, "dptrun: %s\n", message.c_str());
    return code;
  }
}
