#include "comm/mpi/runtime/foreign_launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "kernels/base/parent_process.hpp"

namespace dp {
namespace {

enum class Counts {
  always,
  on_this_host,    // the size counts this host's processes, so MPI may have more ranks
  without_mpirun,  // ignored under mpirun, which may have inherited the variables
  on_this_host_without_mpirun,
};

struct Launcher {
  const char* size;                  // nullptr: no variable has it
  std::array<const char*, 3> ranks;  // at least one must be set; the first is the process' number
  const char* name;
  Counts counts;
};

constexpr const char* kOtherMpi = "the mpiexec of another MPI";
constexpr const char* kOtherMpirun = "an mpirun that does not belong to this program's MPI";
constexpr const char* kSrun = "srun";

constexpr std::array<Launcher, 12> kLaunchers = {{
    {"OMPI_COMM_WORLD_SIZE", {"OMPI_COMM_WORLD_RANK"}, kOtherMpirun, Counts::always},
    {"WORLD_SIZE", {"RANK", "LOCAL_RANK", "NODE_RANK"}, "torchrun", Counts::always},
    {"LOCAL_WORLD_SIZE", {"LOCAL_RANK"}, "torchrun", Counts::on_this_host},
    {"HOROVOD_SIZE", {"HOROVOD_RANK", "HOROVOD_LOCAL_RANK"}, "horovodrun", Counts::always},
    {"PMI_SIZE", {"PMI_RANK"}, kOtherMpi, Counts::without_mpirun},
    {"MV2_COMM_WORLD_SIZE", {"MV2_COMM_WORLD_RANK"}, kOtherMpi, Counts::without_mpirun},
    {"MPI_LOCALNRANKS", {"MPI_LOCALRANKID"}, kOtherMpi, Counts::on_this_host_without_mpirun},
    {"JSM_NAMESPACE_SIZE", {"JSM_NAMESPACE_RANK"}, "jsrun", Counts::without_mpirun},
    {"FLUX_JOB_SIZE", {"FLUX_TASK_RANK"}, "flux", Counts::without_mpirun},
    {"SLURM_STEP_NUM_TASKS", {"SLURM_PROCID"}, kSrun, Counts::without_mpirun},
    {nullptr, {"PALS_RANKID"}, "the mpiexec of PALS", Counts::without_mpirun},
    {nullptr, {"PMIX_RANK"}, "a launcher with another PMIx", Counts::without_mpirun},
}};

int number(const char* text) { return text == nullptr ? 0 : whole_number(text); }

// Whether the variables come from srun --pty. In this case srun starts one shell, and its other
// tasks end at once.
bool is_of_shell(const Launcher& launcher, int processes, const EnvironmentLookup& variable) {
  return launcher.counts == Counts::without_mpirun && variable("SLURM_PTY_PORT") != nullptr &&
         processes == number(variable("SLURM_STEP_NUM_TASKS"));
}

std::string remedy(const Launcher& launcher, const std::string& processes, std::string_view command,
                   const char* variable) {
  return fmt::format("Start them with {}mpirun -np {} {}{}. If {} is left over, unset it.",
                     launcher.name == kOtherMpirun ? "the Open MPI that this program uses: " : "",
                     processes, command, launcher.name == kSrun ? " or srun --mpi=pmix" : "",
                     variable);
}

}  // namespace

std::optional<std::string> foreign_launcher(const EnvironmentLookup& variable, MpiPlace mpi,
                                            std::string_view command) {
  const bool is_of_mpirun = variable("OMPI_COMM_WORLD_SIZE") != nullptr;
  const auto is_set = [&](const char* name) {
    return name != nullptr && variable(name) != nullptr;
  };
  for (const Launcher& launcher : kLaunchers) {
    const bool counts_beside_mpirun =
        launcher.counts == Counts::always || launcher.counts == Counts::on_this_host;
    if (!counts_beside_mpirun && (is_of_mpirun || mpi.world_ranks > 1)) continue;
    const int ranks = launcher.name == kOtherMpirun ? mpi.world_ranks : mpi.ranks;

    const int processes = launcher.size == nullptr ? 0 : number(variable(launcher.size));
    const bool may_be_fewer = launcher.counts == Counts::on_this_host ||
                              launcher.counts == Counts::on_this_host_without_mpirun;
    const bool fits = processes <= 1 || (may_be_fewer ? processes <= ranks : processes == ranks);
    const bool has_rank =
        launcher.name == kOtherMpirun || std::ranges::any_of(launcher.ranks, is_set);
    if (!fits && has_rank && !is_of_shell(launcher, processes, variable)) {
      return fmt::format(
          "{}={} (set by {}): {} processes were started{}, but MPI has {}. {}", launcher.size,
          processes, launcher.name, processes, may_be_fewer ? " on this host" : "",
          ranks == 1 ? "1 rank, so each would train alone"
                     : fmt::format("{} ranks, so they would not train together", ranks),
          remedy(launcher, std::to_string(processes), command, launcher.size));
    }
    const char* const name = launcher.ranks[0];
    const int rank = number(variable(name));
    if (ranks == 1 && rank > 0) {
      return fmt::format(
          "{}={} (set by {}): this is process {} of several, but MPI has 1 rank, so each would "
          "train alone. {}",
          name, rank, launcher.name, rank, remedy(launcher, "N", command, name));
    }
    if (launcher.counts == Counts::always && launcher.name != kOtherMpirun && processes == ranks &&
        is_set(name) && rank != mpi.rank) {
      return fmt::format(
          "{}={} (set by {}) does not fit rank {} of MPI: {} processes have each started an "
          "mpirun of {} ranks, so they would not train together. Start mpirun -np {} {} once. If "
          "{} is left over, unset it.",
          name, rank, launcher.name, mpi.rank, processes, processes, processes, command, name);
    }
  }
  return std::nullopt;
}

}  // namespace dp
