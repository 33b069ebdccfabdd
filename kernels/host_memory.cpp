#include "kernels/host_memory.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace dp {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

std::size_t minus(std::size_t a, std::size_t b) { return a > b ? a - b : 0; }

// Reads a file that holds a single number. Returns nothing if the file holds "max".
std::optional<std::size_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::size_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// Returns the number after `word` in a file. Each line of the file is "word number ...".
std::size_t number_behind(const fs::path& path, const std::string& word) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream parts(line);
    std::string first;
    std::size_t number = 0;
    if (parts >> first >> number && first == word) return number;
  }
  return 0;
}

// The file names, and the words in memory.stat, of the two versions of control groups.
struct CgroupKind {
  const char* subfolder;
  const char* limit;
  const char* used;
  const char* inactive_cache;
  const char* active_cache;
};
constexpr CgroupKind kVersion1 = {"memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file", "total_active_file"};
constexpr CgroupKind kVersion2 = {"", "memory.max", "memory.current", "inactive_file",
                                  "active_file"};

// The free memory of a control group, or of one of its parents if that has less. Inside a container
// `path` may be the path on the host; then only the folder `top` exists here.
std::size_t free_of_cgroup(const fs::path& top, const std::string& path, const CgroupKind& kind) {
  std::size_t least = kNoLimit;
  for (fs::path below = fs::path(path).relative_path();; below = below.parent_path()) {
    const fs::path group = top / kind.subfolder / below;
    if (const auto limit = number_in(group / kind.limit)) {
      const fs::path statistics = group / "memory.stat";
      const std::size_t cache = number_behind(statistics, kind.inactive_cache) +
                                number_behind(statistics, kind.active_cache);
      const std::size_t used = number_in(group / kind.used).value_or(0);
      least = std::min(least, minus(*limit, minus(used, cache)));
    }
    if (below.empty()) return least;
  }
}

// /proc/self/cgroup has lines "number:controllers:path"; version 2 has "0::path".
std::size_t free_of_cgroups(const MemoryFolders& folders) {
  std::size_t least = kNoLimit;
  std::ifstream file(fs::path(folders.proc) / "self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool has_memory = ("," + controllers + ",").find(",memory,") != std::string::npos;
    if (!has_memory && !controllers.empty()) continue;
    least = std::min(least, free_of_cgroup(folders.cgroup, line.substr(second + 1),
                                           has_memory ? kVersion1 : kVersion2));
  }
  return least;
}

// The unused part of a process limit. `used_word` begins the line of /proc/self/status that gives
// the kB in use.
std::size_t free_of_limit(int resource, const fs::path& status, const std::string& used_word) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return kNoLimit;
  }
  return minus(limit.rlim_cur, number_behind(status, used_word) * 1024);
}

}  // namespace

FreeMemory free_host_memory(std::size_t processes, const MemoryFolders& folders) {
  const fs::path proc = folders.proc;
  const std::size_t of_host = number_behind(proc / "meminfo", "MemAvailable:") * 1024;
  const fs::path status = proc / "self/status";
  const FreeMemory candidates[] = {
      {of_host == 0 ? kNoLimit : of_host / processes, "the host's free memory", false},
      {free_of_cgroups(folders) / processes, "the container's limit", false},
      {free_of_limit(RLIMIT_AS, status, "VmSize:"), "ulimit -v", true},
      {free_of_limit(RLIMIT_DATA, status, "VmData:"), "ulimit -d", true}};
  return *std::min_element(
      std::begin(candidates), std::end(candidates),
      [](const FreeMemory& a, const FreeMemory& b) { return a.bytes < b.bytes; });
}

}  // namespace dp
