#include "app/dptrun/dptrun_watch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

bool has(const std::vector<RunHost>& hosts, const RunHost& host) {
  return std::ranges::find(hosts, host) != hosts.end();
}

std::vector<std::string> names_not_in(const std::vector<RunHost>& some,
                                      const std::vector<RunHost>& others) {
  std::vector<std::string> names;
  for (const RunHost& host : some) {
    if (!has(others, host)) names.push_back(host.name);
  }
  return names;
}

}  // namespace

HostWatch::HostWatch(HostWatchOptions options, std::vector<RunHost> now)
    : options_(std::move(options)),
      now_(std::move(now)),
      next_look_(Clock::now() + duration_of(options_.every_s)) {}

// A hostfile that cannot be read, such as one that is just being written, changes nothing.
HostWatch::Look HostWatch::look(const HostWatchOptions& options, const std::vector<RunHost>& now) {
  std::vector<RunHost> wanted = options.hosts;
  if (!options.hostfile.empty()) {
    try {
      wanted = read_hostfile(options.hostfile);
    } catch (const Error& error) {
      return {.hosts = now, .failure = error.what()};
    }
  }
  std::vector<RunHost> others;
  for (const RunHost& host : wanted) {
    if (!has(now, host)) others.push_back(host);
  }
  const std::vector<bool> answers = ask_hosts(others, options.agent, options.answer_s);
  Look found;
  std::size_t other = 0;
  for (const RunHost& host : wanted) {
    if (has(now, host) || answers[other++]) found.hosts.push_back(host);
  }
  return found;
}

std::optional<HostWatch::Change> HostWatch::poll() {
  if (options_.every_s <= 0 || now_.empty()) return std::nullopt;
  if (!looking_.valid()) {
    if (Clock::now() < next_look_) return std::nullopt;
    std::packaged_task<Look()> task(
        [options = options_, now = now_] { return look(options, now); });
    looking_ = task.get_future();
    std::thread(std::move(task)).detach();
    return std::nullopt;
  }
  if (looking_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  const Look found = looking_.get();
  next_look_ = Clock::now() + duration_of(options_.every_s);
  const std::vector<std::string> come = names_not_in(found.hosts, now_),
                                 gone = names_not_in(now_, found.hosts);
  if (!found.failure.empty() || (come.empty() && gone.empty())) return std::nullopt;
  if (found.hosts.size() < options_.least) return std::nullopt;
  std::string why;
  if (!come.empty()) why = fmt::format("{} can join", fmt::join(come, ", "));
  if (!gone.empty()) {
    why += fmt::format("{}{} {} no longer listed", why.empty() ? "" : ", ", fmt::join(gone, ", "),
                       gone.size() == 1 ? "is" : "are");
  }
  now_ = found.hosts;
  return Change{found.hosts, why};
}

}  // namespace dp
