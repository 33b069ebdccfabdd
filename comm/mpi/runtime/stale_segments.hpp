// Removes shared-memory files that an earlier job has left on this host.
//
// The ranks of a host communicate through files in /dev/shm, 4 MB each (Open MPI's "vader", called
// "sm" from Open MPI 5 on). mpirun removes them at the end of a job, but not if mpirun itself is
// killed (kill -9). They then occupy memory until the host reboots.
#pragma once

#include <cstddef>
#include <filesystem>

namespace dp {

// Removes the files of this user and host that are older than a minute and that no process has
// mapped, in any container. Returns their number; takes half a second if there are any. Never
// throws. One rank of a host calls it before MPI_Init.
std::size_t remove_stale_segments(const std::filesystem::path& folder);

// The folder in which Open MPI keeps these files.
[[nodiscard]] std::filesystem::path segment_folder();

}  // namespace dp
