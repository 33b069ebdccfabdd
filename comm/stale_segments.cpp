#include "comm/stale_segments.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace dp {
namespace {

constexpr std::array<std::string_view, 2> kPrefixes = {"vader_segment.", "sm_segment."};
// Ranks open each other's files when their job starts.
constexpr std::time_t kLeastAge_s = 60;
// A rank that ends unmaps its file before it removes it, and complains if it is not there.
constexpr auto kEnding = std::chrono::milliseconds(500);

// The names of all such files that some process of this user has mapped.
std::set<std::string> mapped_segments() {
  std::set<std::string> mapped;
  std::error_code code;
  for (std::filesystem::directory_iterator at("/proc", code), end; !code && at != end;
       at.increment(code)) {
    if (std::isdigit(static_cast<unsigned char>(at->path().filename().string().front())) == 0) {
      continue;
    }
    std::ifstream maps(at->path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      for (const std::string_view prefix : kPrefixes) {
        const std::size_t found = line.find(prefix);
        if (found != std::string::npos) mapped.insert(line.substr(found));
      }
    }
  }
  return mapped;
}

}  // namespace

std::filesystem::path segment_folder() {
  for (const char* variable :
       {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"}) {
    if (const char* chosen = std::getenv(variable)) return chosen;
  }
  return "/dev/shm";
}

std::size_t remove_stale_segments(const std::filesystem::path& folder) {
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) != 0) return 0;
  const std::string mine = host + ("." + std::to_string(::geteuid()) + ".");
  const auto is_mine = [&](std::string_view name) {
    return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) {
      return name.starts_with(prefix) && name.substr(prefix.size()).starts_with(mine);
    });
  };
  std::vector<std::filesystem::path> old;
  std::error_code code;
  for (std::filesystem::directory_iterator at(folder, code), end; !code && at != end;
       at.increment(code)) {
    if (!is_mine(at->path().filename().string())) continue;
    struct stat status {};
    if (::lstat(at->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != ::geteuid() || std::time(nullptr) - status.st_mtime < kLeastAge_s) {
      continue;
    }
    old.push_back(at->path());
  }
  if (old.empty()) return 0;
  const std::set<std::string> mapped = mapped_segments();
  std::erase_if(old, [&](const auto& path) { return mapped.contains(path.filename()); });
  if (old.empty()) return 0;
  std::this_thread::sleep_for(kEnding);
  return static_cast<std::size_t>(std::ranges::count_if(
      old, [&](const auto& path) { return std::filesystem::remove(path, code); }));
}

}  // namespace dp
