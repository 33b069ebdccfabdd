// Finds processes that do not know each other through MPI: a launcher other than MPI's has started
// them (torchrun, MPICH's mpiexec, srun without PMIx), or the mpirun of another Open MPI. MPI makes
// each of them rank 0 of 1, so each would train alone. Or each of them has started an mpirun.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace dp {

// The value of an environment variable, or nullptr if it is not set: std::getenv.
using EnvironmentLookup = std::function<const char*(const char*)>;

// This process in MPI: in the communicator that it uses, and the ranks of MPI_COMM_WORLD.
struct MpiPlace {
  int rank = 0, ranks = 1;
  int world_ranks = 1;
};

// A message that names the launcher's variable and what to type, if a launcher counts other
// processes than MPI, or numbers them otherwise; otherwise nothing. `command` is what mpirun
// starts: "python3 train.py". Ranks may get different answers.
//
// A launcher that counts one process is never reported. Variables of PMI, PMIx and Slurm count only
// while MPI has one rank and mpirun has not started it: mpirun itself may run in a step of Slurm.
// Only torchrun's and horovodrun's may count the ranks of a communicator.
// SLURM_NTASKS, or SLURM_PROCID=0, belongs to an allocation, not to a launcher; a shell that
// srun --pty has started is no process of a program.
[[nodiscard]] std::optional<std::string> foreign_launcher(const EnvironmentLookup& variable,
                                                          MpiPlace mpi, std::string_view command);

}  // namespace dp
