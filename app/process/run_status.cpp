#include "app/process/run_status.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPeriod = std::chrono::seconds(1);

std::atomic<bool> is_wanted = false, is_rank_0 = false;
bool has_said_step = false;
Clock::time_point said_step_at;

// Writes a mark with a single call, so that it stays in one piece.
void write_mark(const std::string& words) {
  const std::string mark =
      fmt::format("{}dptrun {} {}{}", kStatusBegin, words, mark_checksum(words), kStatusEnd);
  static_cast<void>(!::write(STDOUT_FILENO, mark.data(), mark.size()));
}

}  // namespace

RunStatus::RunStatus() {
  is_wanted = std::getenv(kStatusVariable) != nullptr;
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  is_rank_0 = is_wanted && rank != nullptr && std::string_view(rank) == "0";
  if (!is_rank_0) return;
  // The new thread blocks all signals, because the main thread is to receive them.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::jthread([](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any ends;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      write_mark("alive");
      ends.wait_for(lock, stop, kPeriod, [] { return false; });
    }
  });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RunStatus::~RunStatus() = default;  // this ends the thread

void RunStatus::say_plan(std::uint64_t steps) {
  if (is_rank_0) write_mark(fmt::format("plan {}", steps));
}

void RunStatus::say_images(const std::string& of_ranks) {
  if (is_rank_0 && of_ranks.size() < kMostImagesText) write_mark("images " + of_ranks);
}

void RunStatus::say_start(std::uint64_t steps) {
  if (is_rank_0) write_mark(fmt::format("start {}", steps));
}

void RunStatus::say_step(std::uint64_t steps, bool at_once) {
  if (!is_rank_0) return;
  const Clock::time_point now = Clock::now();
  if (!at_once && has_said_step && now - said_step_at < kPeriod) return;
  has_said_step = true;
  said_step_at = now;
  write_mark(fmt::format("step {}", steps));
}

void RunStatus::say_end(int exit_code) {
  if (is_wanted) write_mark(fmt::format("end {}", exit_code));
}

}  // namespace dp
