// How much more memory this process may take on its host, and which limit binds: what the host has
// free, the limits of the containers (cgroups) around the process, or its own (ulimit -v, -d).
#pragma once

#include <cstddef>
#include <string>

namespace dp {

struct FreeMemory {
  std::size_t bytes = 0;
  std::string limit = {};     // "the host's free memory", "the container's limit", "ulimit -v"
  bool is_of_process = true;  // else other processes of the host take from the same bytes
};

// Where the kernel says so; other folders for tests.
struct MemoryFolders {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

// For each of `processes` that take as much at the same time, from now on. What the page cache
// holds counts as free. Limits that cannot be read are not counted.
[[nodiscard]] FreeMemory free_host_memory(std::size_t processes = 1,
                                          const MemoryFolders& folders = {});

}  // namespace dp
