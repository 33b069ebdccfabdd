// Lists the ranks of this job on this host as the kernel sees them. The list is used in error
// messages about a silent rank, and by code that runs when MPI cannot be called. It requires mpirun
// (Open MPI 4 or 5) or Slurm's PMIx, and /proc; otherwise the list is empty.
#pragma once

#include <sys/types.h>

#include <vector>

namespace dp {

struct HostRank {
  int rank = 0;
  pid_t process = 0;
  bool is_stopped = false;  // by SIGSTOP, Ctrl-Z or a debugger
};

// Sorted by rank; includes this rank.
[[nodiscard]] std::vector<HostRank> ranks_on_this_host();

// This rank's number, the number of ranks, and the number of ranks on this host, from the
// environment that mpirun or srun has set. They are valid even before MPI_Init. A number that is
// not set is -1.
[[nodiscard]] int rank_from_launcher();
[[nodiscard]] int size_from_launcher();
[[nodiscard]] int local_size_from_launcher();

}  // namespace dp
