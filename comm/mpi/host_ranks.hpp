// The ranks of a job that run on this host, as the kernel sees them: for messages about a rank that
// does not answer, and where MPI itself cannot be asked. It needs mpirun (Open MPI 4 or 5) or
// Slurm's PMIx, and /proc; without them there are none.
#pragma once

#include <sys/types.h>

#include <vector>

namespace dp {

struct HostRank {
  int rank = 0;
  pid_t process = 0;
  bool is_stopped = false;  // by SIGSTOP, Ctrl-Z or a debugger
};

// By rank; this one included.
[[nodiscard]] std::vector<HostRank> ranks_on_this_host();

// What mpirun or srun tells a rank about itself, before MPI_Init too; -1 where nobody does.
[[nodiscard]] int rank_from_launcher();
[[nodiscard]] int size_from_launcher();
[[nodiscard]] int local_size_from_launcher();

}  // namespace dp
