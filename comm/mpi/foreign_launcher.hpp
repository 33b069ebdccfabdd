// Finds processes that a launcher other than MPI's has started: torchrun, MPICH's mpiexec, or srun
// without PMIx. MPI makes each of them rank 0 of 1, so each would train alone.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace dp {

// The value of an environment variable, or nullptr if it is not set: std::getenv.
using EnvironmentLookup = std::function<const char*(const char*)>;

// One sentence that names the launcher's variable and what to type, if a launcher counts other
// processes than the `mpi_ranks` of MPI_COMM_WORLD; otherwise nothing. `command` is what mpirun
// starts: "python3 train.py".
//
// A launcher that counts one process is never reported. Variables of PMI and of Slurm count only
// while MPI has one rank and mpirun has not started it: mpirun itself may run in a step of Slurm.
// SLURM_NTASKS and SLURM_PROCID alone belong to an allocation, not to a launcher.
[[nodiscard]] std::optional<std::string> foreign_launcher(const EnvironmentLookup& variable,
                                                          int mpi_ranks, std::string_view command);

}  // namespace dp
