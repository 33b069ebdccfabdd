#include "comm/mpi/runtime/stale_segments.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace dp {
namespace {

constexpr std::array<std::string_view, 2> kPrefixes = {"vader_segment.", "sm_segment."};
// Younger files are left alone: ranks of a job that is just starting may still have to open them.
constexpr std::time_t kLeastAge_s = 60;
// A rank that is ending unmaps its file, then removes it, and prints an error if the file is gone
// by then. This wait gives such a rank the time to remove its file.
constexpr auto kEnding = std::chrono::milliseconds(500);

// Whether no process of this kernel uses the file as ranks do: open for writing, or mapped after it
// was opened for writing. The kernel grants a read lease only if there is no such process, and it
// also considers processes that /proc does not show here, such as those of another container with
// the same host name. Returns false if the kernel cannot say.
bool is_unused(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return false;
  // If a process opens the file meanwhile, it breaks the lease, and the kernel sends a signal. The
  // default signal would end this process; SIGURG does not.
  ::fcntl(file, F_SETSIG, SIGURG);
  const bool is_leased = ::fcntl(file, F_SETLEASE, F_RDLCK) == 0;
  ::close(file);
  return is_leased;
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
  std::erase_if(old, [](const auto& path) { return !is_unused(path); });
  if (old.empty()) return 0;
  std::this_thread::sleep_for(kEnding);
  return static_cast<std::size_t>(std::ranges::count_if(
      old, [&](const auto& path) { return std::filesystem::remove(path, code); }));
}

}  // namespace dp
