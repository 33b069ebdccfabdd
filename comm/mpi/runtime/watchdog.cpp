#include "comm/mpi/runtime/watchdog.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "comm/mpi/host_ranks.hpp"
#include "comm/mpi/runtime/job_end.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr double kPatienceWithTheLiving = 10.0;  // in timeouts
constexpr double kLeastForStart_s = 15.0;
// Ranks report one after the other, kTurn_s apart, so that the first one ends the job before the
// next one reports. The ranks of a host without a stopped rank wait kAfterThoseWhoKnow_s longer,
// because another host may know which rank is stopped.
constexpr double kTurn_s = 0.5, kAfterThoseWhoKnow_s = 1.0;
constexpr int kMostTurns = 10;
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr auto kLate = std::chrono::seconds(2);

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

Watchdog::Watchdog(WatchdogOptions options)
    : options_(std::move(options)), thread_([this] { main_loop(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Watchdog::set_timeout_s(double timeout_s) {
  const std::lock_guard lock(mutex_);
  options_.timeout_s = timeout_s;
}

void Watchdog::begin(const char* call) {
  const std::lock_guard lock(mutex_);
  call_ = call;
  began_ = Clock::now();
  if (call != nullptr) changed_.notify_all();
}

void Watchdog::end_soon(int exit_code, double limit_s) {
  const std::lock_guard lock(mutex_);
  exit_code_ = exit_code;
  end_ = Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  changed_.notify_all();
}

std::string Watchdog::verdict(const std::string& call, double waited_s, double timeout_s) const {
  const int me = rank_from_launcher(), size = size_from_launcher();
  const bool is_one_host = size > 0 && size == local_size_from_launcher();
  const std::vector<HostRank> here = ranks_on_this_host();
  std::string silent, processes;
  int silent_ranks = 0, turn = 0;
  for (const HostRank& other : here) {
    if (other.is_stopped) {
      silent += fmt::format("{}rank {}", silent_ranks == 0 ? "" : ", ", other.rank);
      processes += fmt::format("{}{}", silent_ranks == 0 ? "" : ", ", other.process);
      ++silent_ranks;
    } else if (other.rank < me) {
      ++turn;
    }
  }
  const auto has_turn = [&](double from_s) { return waited_s >= from_s + kTurn_s * turn; };
  const std::string advice = options_.timeout_option.empty()
                                 ? ""
                                 : fmt::format(", or raise the timeout, now {:g} s (option {})",
                                               timeout_s, options_.timeout_option);
  const std::string by =
      size > 1 ? fmt::format(" (reported by rank {} on host {})", me, host_name()) : std::string();
  if (silent_ranks > 0) {
    if (!has_turn(timeout_s)) return {};
    const bool is_one = silent_ranks == 1;
    return fmt::format(
        "{} on host {} {} been silent for {:.0f} s in {}: {} {} stopped (SIGSTOP or Ctrl-Z); "
        "resume "
        "{} (kill -CONT){}{}",
        silent, host_name(), is_one ? "has" : "have", waited_s, call,
        is_one ? "its process" : "their processes", processes + (is_one ? " is" : " are"),
        is_one ? "it" : "them", advice, by);
  }
  if (is_one_host || size <= 1) {
    if (!has_turn(kPatienceWithTheLiving * timeout_s)) return {};
    return fmt::format(
        "{} has not ended for {:.0f} s, although no rank is stopped: check whether the "
        "machine is overloaded{}{}",
        call, waited_s, advice, by);
  }
  const double limit_s = call == "MPI_Init" ? std::max(timeout_s, kLeastForStart_s) : timeout_s;
  // The timeout ends on all hosts at the same time, so the hosts take turns. The first host's
  // report ends the job before the second host's turn.
  const int host = me / std::max(local_size_from_launcher(), 1);
  const double own_turn_s = kTurn_s * (turn + std::clamp(host, 0, kMostTurns));
  if (waited_s < limit_s + kAfterThoseWhoKnow_s + own_turn_s) return {};
  return fmt::format(
      "a rank on another host has been silent for {:.0f} s in {}: the {} rank{} on host {} wait{} "
      "for it; check that every host runs its ranks and reaches the others{}{}",
      waited_s, call, here.size(), here.size() == 1 ? "" : "s", host_name(),
      here.size() == 1 ? "s" : "", advice, by);
}

void Watchdog::main_loop() {
  pthread_setname_np(pthread_self(), "dp-watchdog");
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    if (exit_code_ != 0) {
      if (changed_.wait_until(lock, end_) == std::cv_status::timeout) end_job_now(exit_code_);
      continue;
    }
    if (call_ == nullptr) {
      changed_.wait(lock);
      continue;
    }
    const auto timeout = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(options_.timeout_s));
    const auto next = std::max(began_ + timeout, Clock::now() + kLook);
    if (changed_.wait_until(lock, next) == std::cv_status::no_timeout) continue;
    if (call_ == nullptr || Clock::now() < began_ + timeout) continue;
    if (Clock::now() > next + kLate) {  // this process itself was stopped, or had no processor
      began_ = Clock::now();
      continue;
    }
    const Clock::time_point began = began_;
    const std::string call = call_;
    const double waited_s = std::chrono::duration<double>(Clock::now() - began).count();
    const double timeout_s = options_.timeout_s;
    lock.unlock();
    const std::string message = verdict(call, waited_s, timeout_s);
    lock.lock();
    if (message.empty() || call_ == nullptr || began_ != began) continue;
    if (is_first_to_speak()) {
      const std::string line = options_.program + ": " + message + "\n";
      static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
    }
    constexpr int kExitCode = static_cast<int>(ErrorKind::communication);
    if (options_.on_end) options_.on_end(kExitCode);
    end_job_now(kExitCode);
  }
}

}  // namespace dp
