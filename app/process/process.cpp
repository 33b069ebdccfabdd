#include "app/process/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <omp.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "app/process/cpu_limits.hpp"

namespace dp {

namespace {

// Undoes the binding that OpenMP gave this thread at the start. Returns whether there was one.
bool undo_binding_by_openmp() {
  const int places = omp_get_num_places();
  if (places == 0) return false;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int place = 0; place < places; ++place) {
    std::vector<int> ids(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, ids.data());
    for (const int core : ids) CPU_SET(core, &cores);
  }
  ::sched_setaffinity(0, sizeof(cores), &cores);
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}) ::unsetenv(name);
  return true;
}

}  // namespace

void restart_with_openmp_settings(char** argv) {
  const bool was_bound = undo_binding_by_openmp();
  const bool has_policy =
      std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
  if (has_policy && !was_bound) return;
  if (!has_policy) ::setenv("GOMP_SPINCOUNT", "20000", 0);
  // Starts the program by its own path, so that top and ps still show its name.
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return;  // without /proc the program works, but its threads spin
  path[length] = '\0';
  ::execv(path, argv);
}

namespace {

std::vector<int> cores_of(const cpu_set_t& set) {
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// "0-3,8": neighbouring numbers become a range.
std::string to_text(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t end = i;
    while (end + 1 < cores.size() && cores[end + 1] == cores[end] + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(cores[i]);
    if (end > i) text += "-" + std::to_string(cores[end]);
    i = end + 1;
  }
  return text;
}

using Group = decltype(CpuQuota::group);

// The cores that a process may use, its cgroups with a quota, and the identity of the running
// kernel.
struct CorePool {
  std::array<char, 40> boot_id = {};
  cpu_set_t cores;
  std::array<Group, 16> quota_groups = {};
};

// The smallest quotas, as many as a CorePool has room for.
std::vector<CpuQuota> smallest_quotas(const std::filesystem::path& root) {
  std::vector<CpuQuota> quotas = cpu_quotas(root);
  std::ranges::sort(quotas, {}, &CpuQuota::cores);
  quotas.resize(std::min(quotas.size(), CorePool{}.quota_groups.size()));
  return quotas;
}

// A rank's part of the quota that limits it most. This is the quota of the rank's own cgroup, or of
// a cgroup around it that several ranks share.
struct QuotaShare {
  CpuQuota quota;
  double cores = 0.0;  // of this rank
  int threads = 1;
};

std::optional<QuotaShare> share_quotas(const std::vector<CpuQuota>& quotas,
                                       const std::vector<CorePool>& pools, const CorePool& mine) {
  std::optional<QuotaShare> least;
  for (const CpuQuota& quota : quotas) {
    const auto ranks = static_cast<int>(std::ranges::count_if(pools, [&](const CorePool& other) {
      return other.boot_id == mine.boot_id &&
             std::ranges::find(other.quota_groups, quota.group) != other.quota_groups.end();
    }));
    const double cores = quota.cores / static_cast<double>(ranks);
    if (least && least->cores <= cores) continue;
    least = {.quota = quota, .cores = cores, .threads = std::max(1, quota.threads() / ranks)};
  }
  return least;
}

// An OpenMP team has no more threads than its settings allow. If oneDNN's kernels expect more, they
// wait for ever.
int most_openmp_threads() {
  return omp_get_max_active_levels() < 1 ? 1 : std::max(1, omp_get_thread_limit());
}

// The limits that make a rank's share smaller than its part of all cores, for the line `cores`.
std::string limits_text(int cores, const std::optional<QuotaShare>& share, bool quota_counts,
                        int wanted_threads) {
  std::string text;
  if (const long all = ::sysconf(_SC_NPROCESSORS_ONLN); cores < all) {
    text += fmt::format("; the affinity mask (taskset, cpuset) allows {} of the host's {} cores",
                        cores, all);
  }
  if (!share) return text;
  const CpuQuota& quota = share->quota;
  if (wanted_threads > share->threads) {
    text += fmt::format("; --threads {} is more than the CPU quota of {:.3g} cores allows ({})",
                        wanted_threads, quota.cores, share->threads);
  } else if (quota_counts) {
    text +=
        fmt::format("; the CPU quota is {:.3g} core{}", quota.cores, quota.cores == 1.0 ? "" : "s");
  }
  return text;
}

}  // namespace

CpuShare take_cpu_share(Communicator& comm, int wanted_threads, const std::filesystem::path& root) {
  // The mask is read only once, because this function narrows it.
  static const cpu_set_t allowed = allowed_cores();
  CorePool mine;
  mine.cores = allowed;
  ::sched_setaffinity(0, sizeof(mine.cores), &mine.cores);
  std::ifstream("/proc/sys/kernel/random/boot_id").read(mine.boot_id.data(), 36);
  const std::vector<CpuQuota> quotas = smallest_quotas(root);
  std::ranges::transform(quotas, mine.quota_groups.begin(), &CpuQuota::group);
  std::vector<int> cores = cores_of(mine.cores);

  const std::vector<CorePool> pools = comm.all_gather(mine);
  int local_rank = 0, local_size = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const CorePool& other = pools[static_cast<std::size_t>(rank)];
    if (other.boot_id != mine.boot_id) continue;
    if (!CPU_EQUAL(&other.cores, &mine.cores)) continue;
    if (rank < comm.rank()) ++local_rank;
    ++local_size;
  }

  CpuShare share;
  share.cores_on_host = static_cast<int>(cores.size());
  share.ranks_on_host = local_size;
  const int cores_of_rank = std::max(1, share.cores_on_host / local_size);
  share.threads = cores_of_rank;
  share.cores_per_rank = static_cast<double>(share.cores_on_host) / static_cast<double>(local_size);
  const std::optional<QuotaShare> of_quota = share_quotas(quotas, pools, mine);
  const bool quota_counts = of_quota && of_quota->cores < share.cores_per_rank;
  if (of_quota) {
    share.threads = std::min(share.threads, of_quota->threads);
    share.cores_per_rank = std::min(share.cores_per_rank, of_quota->cores);
  }
  // A quota does not narrow the mask, because it names no cores: the kernel chooses them.
  if (local_size <= share.cores_on_host && wanted_threads <= cores_of_rank) {
    const auto first = cores.begin() + local_rank * cores_of_rank;
    cores = std::vector<int>(first, first + cores_of_rank);
    cpu_set_t own;
    CPU_ZERO(&own);
    for (const int core : cores) CPU_SET(core, &own);
    ::sched_setaffinity(0, sizeof(own), &own);
  }
  if (wanted_threads > 0) share.threads = wanted_threads;
  share.cores = to_text(cores);
  share.limits = limits_text(share.cores_on_host, of_quota, quota_counts, wanted_threads);
  if (const int most = most_openmp_threads(); share.threads > most) {
    share.threads = most;
    share.limits += fmt::format("; OpenMP's settings (OMP_THREAD_LIMIT) allow {} thread{}", most,
                                most == 1 ? "" : "s");
  }
  return share;
}

int open_launchers_stream(int number) {
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return -1;
  const std::string path = "/proc/" + std::to_string(::getppid()) + "/fd/" + std::to_string(number);
  return ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
}

bool output_is_watched() {
  if (::isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return true;
  const int file = open_launchers_stream(STDOUT_FILENO);
  if (file < 0) return false;
  const bool is_terminal = ::isatty(file) != 0;
  ::close(file);
  return is_terminal;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

std::size_t peak_memory_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace dp
