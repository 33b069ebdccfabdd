// Detects processes that belong together but are not ranks of one MPI job. This happens in two
// ways. Either a launcher other than this MPI's has started them: torchrun, MPICH's mpiexec, srun
// without PMIx, or the mpirun of another Open MPI. MPI then makes each of them rank 0 of 1, so each
// would train alone. Or each process has started an mpirun of its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace dp {

// The value of an environment variable, or nullptr if it is not set: std::getenv.
using EnvironmentLookup = std::function<const char*(const char*)>;

// This process' rank and number of ranks in the communicator that it uses, and the number of ranks
// in MPI_COMM_WORLD.
struct MpiPlace {
  int rank = 0, ranks = 1;
  int world_ranks = 1;
};

// Returns a message if a launcher's environment variables disagree with MPI about the number of
// processes or about this process' number; otherwise nothing. The message names the variable and
// the command to type. `command` is the program for mpirun: "python3 train.py". Ranks may get
// different results.
//
// A launcher that counts one process is never reported. Variables of PMI, PMIx and Slurm are
// considered only if MPI has one rank and mpirun has not started this process, since mpirun itself
// may run in a step of Slurm. Variables of torchrun and horovodrun are compared with the size of
// the communicator, variables of mpirun with the size of MPI_COMM_WORLD. SLURM_NTASKS and
// SLURM_PROCID=0 are ignored, because an allocation sets them without any launcher. A shell that
// srun --pty has started does not count as a process of a program.
[[nodiscard]] std::optional<std::string> foreign_launcher(const EnvironmentLookup& variable,
                                                          MpiPlace mpi, std::string_view command);

}  // namespace dp
