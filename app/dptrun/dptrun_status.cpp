#include "app/dptrun/dptrun_status.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

using namespace std::chrono_literals;

constexpr auto kPeriod = 1s;
constexpr auto kPaceTime = 30s;
constexpr std::size_t kFewestMarks = 3;
constexpr std::size_t kMostBytes = 1 << 16;

// The folder, or nothing if it is not this user's own.
std::string status_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string folder = runtime != nullptr && *runtime == '/'
                                 ? fmt::format("{}/dptrun", runtime)
                                 : fmt::format("/tmp/dptrun-{}", ::geteuid());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return {};
  struct stat its = {};
  const bool is_own = ::lstat(folder.c_str(), &its) == 0 && S_ISDIR(its.st_mode) &&
                      its.st_uid == ::geteuid() && (its.st_mode & 022) == 0;
  return is_own ? folder : std::string();
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole >= 86'400) return fmt::format("{} d {} h", whole / 86'400, whole % 86'400 / 3600);
  if (whole >= 3600) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  return whole >= 60 ? fmt::format("{} min {} s", whole / 60, whole % 60)
                     : fmt::format("{} s", whole);
}

std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return text;
}

template <class Number>
Number number_in(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw_error(ErrorKind::data, "'{}' is no number", text);
  }
  return number;
}

std::string describe(int process, const RunProgress& run) {
  std::string text = fmt::format("dptrun {}: {}", process, run.state);
  if (run.steps > 0) {
    text += fmt::format(", step {} of {} ({:.0f} %)", run.step, run.steps,
                        100.0 * static_cast<double>(run.step) / static_cast<double>(run.steps));
  } else if (run.step > 0) {
    text += fmt::format(", step {}", run.step);
  }
  if (run.steps_per_s > 0) {
    text += fmt::format(", {:.3g} steps/s", run.steps_per_s);
    if (run.steps > run.step) {
      text +=
          fmt::format(", about {} left",
                      duration_text(static_cast<double>(run.steps - run.step) / run.steps_per_s));
    }
  }
  text += "\n";
  if (!run.hosts.empty()) text += fmt::format("  hosts     {}\n", run.hosts);
  if (run.ranks > 0) text += fmt::format("  ranks     {}\n", run.ranks);
  if (!run.images.empty()) text += fmt::format("  images    {} a step, by rank\n", run.images);
  if (run.restarts > 0) text += fmt::format("  restarts  {}\n", run.restarts);
  return text + fmt::format("  command   {}\n", run.command);
}

}  // namespace

// ---- pace ---------------------------------------------------------------------------------------

void StepPace::add(std::uint64_t steps, Clock::time_point when) {
  if (!marks_.empty() && steps < marks_.back().second) marks_.clear();
  marks_.emplace_back(when, steps);
  while (marks_.size() > kFewestMarks && when - marks_.front().first > kPaceTime) {
    marks_.pop_front();
  }
}

double StepPace::steps_per_s() const {
  if (marks_.size() < kFewestMarks) return 0;
  const double seconds =
      std::chrono::duration<double>(marks_.back().first - marks_.front().first).count();
  const auto steps = static_cast<double>(marks_.back().second - marks_.front().second);
  return seconds > 0 ? steps / seconds : 0;
}

// ---- the file -----------------------------------------------------------------------------------

std::string progress_text(const RunProgress& run) {
  return fmt::format(
      "state {}\nhosts {}\nranks {}\nimages {}\nstep {}\nsteps {}\npace {}\nrestarts {}\ncommand "
      "{}\n",
      one_line(run.state), one_line(run.hosts), run.ranks, one_line(run.images), run.step,
      run.steps, run.steps_per_s, run.restarts, one_line(run.command));
}

RunProgress parse_progress(const std::string& text) {
  RunProgress run;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::string key = line.substr(0, blank);
    const std::string value = line.substr(std::min(blank + 1, line.size()));
    if (key == "state") run.state = value;
    if (key == "hosts") run.hosts = value;
    if (key == "ranks") run.ranks = number_in<std::int64_t>(value);
    if (key == "images") run.images = value;
    if (key == "step") run.step = number_in<std::uint64_t>(value);
    if (key == "steps") run.steps = number_in<std::uint64_t>(value);
    if (key == "pace") run.steps_per_s = number_in<double>(value);
    if (key == "restarts") run.restarts = number_in<std::int64_t>(value);
    if (key == "command") run.command = value;
  }
  return run;
}

StatusFile::StatusFile() {
  const std::string folder = status_folder();
  if (!folder.empty()) path_ = fmt::format("{}/{}", folder, ::getpid());
}

StatusFile::~StatusFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

void StatusFile::update(const RunProgress& progress) {
  const auto now = std::chrono::steady_clock::now();
  if (path_.empty() || (progress.state == last_state_ && now - written_ < kPeriod)) return;
  last_state_ = progress.state;
  written_ = now;
  const std::string part = path_ + ".part", text = progress_text(progress);
  ::unlink(part.c_str());
  const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return;
  const bool is_whole =
      ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(file);
  if (is_whole) static_cast<void>(std::rename(part.c_str(), path_.c_str()));
}

std::string status_table() {
  const std::string folder = status_folder();
  std::vector<int> processes;
  if (DIR* entries = folder.empty() ? nullptr : ::opendir(folder.c_str())) {
    while (const dirent* entry = ::readdir(entries)) {
      const std::string_view name = entry->d_name;
      int process = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), process);
      if (error == std::errc() && end == name.data() + name.size()) processes.push_back(process);
    }
    ::closedir(entries);
  }
  std::ranges::sort(processes);
  std::string table;
  for (const int process : processes) {
    const std::string path = fmt::format("{}/{}", folder, process);
    if (::kill(process, 0) != 0) {
      ::unlink(path.c_str());
      continue;
    }
    std::ifstream file(path);
    std::string text(kMostBytes, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
    try {
      if (!text.empty()) table += describe(process, parse_progress(text));
    } catch (const Error&) {  // a file of another version is left out
    }
  }
  return table.empty() ? "no dptrun of yours is running on this host\n" : table;
}

}  // namespace dp
