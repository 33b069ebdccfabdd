// How much of the host's processors this process may use, apart from its own affinity mask: the
// CPU quota of its cgroups, and the cores that mpirun itself has.
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
  // The cgroup that has it: device and inode. Processes with the same one share the quota.
  std::array<std::uint64_t, 2> group = {};

  [[nodiscard]] int threads() const;  // rounded up
};

// The quotas of this process's cgroup and the cgroups around it, as far as they are mounted.
// Processes of the host that have a group in common share its quota, whatever else limits each.
// Reads version 2 (cpu.max) and version 1 (cpu.cfs_quota_us). Below `root` lie proc and what
// proc/self/mountinfo names.
[[nodiscard]] std::vector<CpuQuota> cpu_quotas(const std::filesystem::path& root = "/");

// The smallest of them; nothing if there is none.
[[nodiscard]] std::optional<CpuQuota> cpu_quota(const std::filesystem::path& root = "/");

// The cores that this process may use: its affinity mask, but under mpirun the mask of mpirun (or
// of its daemon on this host), because mpirun binds a rank to a single core if there are one or two
// ranks. The mask counts all the same with --bind-to none, which leaves it alone, and where
// something between mpirun and this program has set it: mpirun has started taskset or numactl, or a
// script whose own mask is another one.
[[nodiscard]] cpu_set_t allowed_cores();

// The threads that this process can keep busy: one for each allowed core, within the quota.
[[nodiscard]] int usable_threads(const std::filesystem::path& root = "/");

}  // namespace dp
