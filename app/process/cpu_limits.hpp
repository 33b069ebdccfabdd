// Limits on the host's processors that this process may use, besides its own affinity mask: the CPU
// quotas of its cgroups, and the cores that mpirun assigned to it.
#pragma once

#include <sched.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace dp {

struct CpuQuota {
  double cores = 0.0;  // seconds of processor time per second
  // The cgroup that has the quota: device and inode. Processes in the same cgroup share the quota.
  std::array<std::uint64_t, 2> group = {};

  [[nodiscard]] int threads() const;  // rounded up
};

// The quotas of this process's cgroup and of the cgroups around it, as far as they are mounted.
// Processes of the host that are in the same cgroup share its quota, whatever other limits each of
// them has. Reads cgroups version 2 (cpu.max) and version 1 (cpu.cfs_quota_us). `root` contains
// proc and the paths that proc/self/mountinfo names.
[[nodiscard]] std::vector<CpuQuota> cpu_quotas(const std::filesystem::path& root = "/");

// The smallest quota; nothing if there is none.
[[nodiscard]] std::optional<CpuQuota> cpu_quota(const std::filesystem::path& root = "/");

// The cores that this process may use. Under mpirun these are the cores of mpirun (or of its daemon
// on this host), because mpirun binds a rank to a single core if there are one or two ranks. In
// three cases they are the process's own affinity mask instead: without mpirun, with --bind-to
// none, and if something between mpirun and this program has set the mask, such as taskset, numactl
// or a script with another mask.
[[nodiscard]] cpu_set_t allowed_cores();

// The threads that this process can keep busy: one for each allowed core, within the quota.
[[nodiscard]] int usable_threads(const std::filesystem::path& root = "/");

}  // namespace dp
