// How much more memory this process may allocate, and which limit binds: the host's free memory,
// the limits of the containers (cgroups) around the process, or its own limits (ulimit -v, -d).
#pragma once

#include <cstddef>
#include <string>

namespace dp {

struct FreeMemory {
  std::size_t bytes = 0;
  std::string limit = {};     // "the host's free memory", "the container's limit", "ulimit -v"
  bool is_of_process = true;  // false: shared with other processes of the host
};

// The folders in which the kernel publishes the figures; tests use other folders.
struct MemoryFolders {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

// The bytes that each of `processes` processes can allocate from now on if all allocate the same
// amount. Page cache counts as free. Limits that cannot be read are ignored.
[[nodiscard]] FreeMemory free_host_memory(std::size_t processes = 1,
                                          const MemoryFolders& folders = {});

}  // namespace dp
