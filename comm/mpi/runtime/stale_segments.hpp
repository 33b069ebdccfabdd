// Removes what an earlier job has left in the memory of this host.
//
// The ranks of a host communicate through files in /dev/shm, 4 MB each (Open MPI's "vader", called
// "sm" from Open MPI 5 on). mpirun removes them at the end of a job, but not if mpirun itself is
// killed (kill -9). They then take memory until the host is started again.
#pragma once

#include <cstddef>
#include <filesystem>

namespace dp {

// Removes the files of this user and host that are older than a minute and that no process has
// mapped, in whatever container it runs. Returns how many there were; takes half a second then.
// Never throws. One rank of a host calls it before MPI_Init.
std::size_t remove_stale_segments(const std::filesystem::path& folder);

// Open MPI's folder for them.
[[nodiscard]] std::filesystem::path segment_folder();

}  // namespace dp
