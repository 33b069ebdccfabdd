#include "app/process/cpu_limits.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/parent_process.hpp"

namespace dp {
namespace {

namespace fs = std::filesystem;

// Whether the list "cpu,cpuacct" has `word`.
bool has_word(const std::string& list, std::string_view word) {
  std::istringstream words(list);
  for (std::string each; std::getline(words, each, ',');) {
    if (each == word) return true;
  }
  return false;
}

// mountinfo writes spaces, tabs, newlines and backslashes as \ooo.
std::string unescape(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

struct Mount {
  std::string root, place;  // the folder of the hierarchy that is mounted, and where
};

std::vector<Mount> cgroup_mounts(const fs::path& root, bool is_v2) {
  std::vector<Mount> mounts;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string id, parent, device, type, source, options;
    Mount mount;
    left >> id >> parent >> device >> mount.root >> mount.place;
    right >> type >> source >> options;
    if (is_v2 ? type == "cgroup2" : type == "cgroup" && has_word(options, "cpu")) {
      mounts.push_back({unescape(mount.root), unescape(mount.place)});
    }
  }
  return mounts;
}

double quota_of(const fs::path& folder, bool is_v2) {
  double quota = 0.0, period = 0.0;  // "max" is no number
  if (is_v2) {
    if (!(std::ifstream(folder / "cpu.max") >> quota >> period)) return 0.0;
  } else {
    if (!(std::ifstream(folder / "cpu.cfs_quota_us") >> quota)) return 0.0;  // -1: none
    if (!(std::ifstream(folder / "cpu.cfs_period_us") >> period)) return 0.0;
  }
  return quota > 0.0 && period > 0.0 ? quota / period : 0.0;
}

// The path from the mounted folder down to the cgroup `path`. The result is empty if `path` is not
// below mount.root. That may happen in a container that sees its own cgroup as the root of the
// mount.
fs::path below_mount(const Mount& mount, const std::string& path) {
  const fs::path steps = fs::path(path).lexically_relative(mount.root);
  if (steps.empty() || steps == "." || *steps.begin() == "..") return {};
  return steps;
}

// Calls `take` with the folder of a cgroup and with the folders of the cgroups around it.
template <typename Function>
void visit(const fs::path& root, const Mount& mount, const std::string& path,
           const Function& take) {
  fs::path folder = root / fs::path(mount.place).relative_path();
  take(folder);
  for (const fs::path& step : below_mount(mount, path)) {
    folder /= step;
    take(folder);
  }
}

// Whether the environment of a process has this variable. /proc ends each variable with a zero
// byte.
bool has_variable(pid_t process, std::string_view name) {
  std::ifstream file("/proc/" + std::to_string(process) + "/environ", std::ios::binary);
  for (std::string word; std::getline(file, word, '\0');) {
    if (word.starts_with(name) && word.substr(name.size()).starts_with("=")) return true;
  }
  return false;
}

struct Launch {
  pid_t launcher = 0;  // mpirun or its daemon; 0: not known
  pid_t first = 0;     // the launcher's child: this process, or a script that started it
};

Launch find_launch() {
  Launch launch = {.launcher = ::getppid(), .first = ::getpid()};
  while (launch.launcher > 1 && has_variable(launch.launcher, "OMPI_COMM_WORLD_RANK")) {
    launch.first = launch.launcher;
    launch.launcher = parent_of(launch.launcher);
  }
  return launch;
}

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Whether mpirun's command line has a program that sets the mask and then replaces itself by the
// next program. The command line is the only trace of such a program.
bool has_started_a_binder() {
  const std::string command = fs::path(variable("OMPI_COMMAND")).filename().string();
  if (command == "taskset") return true;
  if (command != "numactl") return false;
  std::istringstream words{std::string(variable("OMPI_ARGV"))};
  for (std::string word; words >> word && word.starts_with('-');) {
    for (const char* option : {"-C", "--physcpubind", "-N", "--cpunodebind"}) {
      if (word.starts_with(option)) return true;
    }
    if (word.starts_with("--") && word.find('=') != std::string::npos) continue;
    if (word.size() == 2 || word.starts_with("--")) words >> word;  // the option's value
  }
  return false;
}

bool is_bound_behind_mpirun(const Launch& launch) {
  cpu_set_t mine, of_first;
  CPU_ZERO(&mine);
  CPU_ZERO(&of_first);
  if (::sched_getaffinity(0, sizeof(mine), &mine) == 0 &&
      ::sched_getaffinity(launch.first, sizeof(of_first), &of_first) == 0 &&
      !CPU_EQUAL(&mine, &of_first)) {
    return true;
  }
  return has_started_a_binder();
}

}  // namespace

int CpuQuota::threads() const { return std::max(1, static_cast<int>(std::ceil(cores))); }

std::vector<CpuQuota> cpu_quotas(const fs::path& root) {
  std::vector<CpuQuota> quotas;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // "0::/a" in version 2, "3:cpu,cpuacct:/a" in version 1
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && !has_word(controllers, "cpu")) continue;
    for (const Mount& mount : cgroup_mounts(root, is_v2)) {
      visit(root, mount, line.substr(second + 1), [&](const fs::path& folder) {
        const double cores = quota_of(folder, is_v2);
        struct stat status {};
        if (cores <= 0.0 || ::stat(folder.c_str(), &status) != 0) return;
        const std::array<std::uint64_t, 2> group = {status.st_dev, status.st_ino};
        // A hierarchy of cgroups may be mounted twice, but each cgroup counts once.
        const auto is_it = [&](const CpuQuota& quota) { return quota.group == group; };
        if (std::ranges::none_of(quotas, is_it)) quotas.push_back({.cores = cores, .group = group});
      });
    }
  }
  return quotas;
}

std::optional<CpuQuota> cpu_quota(const fs::path& root) {
  const std::vector<CpuQuota> quotas = cpu_quotas(root);
  const auto least = std::ranges::min_element(quotas, {}, &CpuQuota::cores);
  return least == quotas.end() ? std::nullopt : std::optional(*least);
}

cpu_set_t allowed_cores() {
  const bool may_be_bound = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr &&
                            variable("OMPI_MCA_hwloc_base_binding_policy") != "none";
  const Launch launch = may_be_bound ? find_launch() : Launch{};
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (may_be_bound && !is_bound_behind_mpirun(launch)) {
    if (launch.launcher > 1 && ::sched_getaffinity(launch.launcher, sizeof(cores), &cores) == 0) {
      return cores;
    }
    // The kernel reduces "all cores" to what the container or cpuset allows.
    for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &cores);
    ::sched_setaffinity(0, sizeof(cores), &cores);
  }
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) CPU_SET(0, &cores);
  return cores;
}

int usable_threads(const fs::path& root) {
  const cpu_set_t cores = allowed_cores();
  const int count = std::max(1, CPU_COUNT(&cores));
  const std::optional<CpuQuota> quota = cpu_quota(root);
  return quota ? std::min(count, quota->threads()) : count;
}

}  // namespace dp
