#include "comm/mpi/foreign_launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace dp {
namespace {

struct Launcher {
  const char* size;
  std::array<const char*, 3> ranks;  // one of them must be set, too
  const char* name;
  bool counts_beside_mpirun;
  const char* other_way;  // to start several ranks
};

constexpr std::array<Launcher, 4> kLaunchers = {{
    {"WORLD_SIZE",
     {"RANK", "LOCAL_RANK", "NODE_RANK"},
     "torchrun, accelerate or Lightning",
     true,
     ""},
    {"PMI_SIZE", {"PMI_RANK"}, "the mpiexec of another MPI", false, ""},
    {"MV2_COMM_WORLD_SIZE", {"MV2_COMM_WORLD_RANK"}, "the mpiexec of another MPI", false, ""},
    {"SLURM_STEP_NUM_TASKS", {"SLURM_PROCID"}, "srun", false, " or srun --mpi=pmix"},
}};

// 0 if the text is no number.
int number(const char* text) {
  const std::string_view all = text == nullptr ? "" : text;
  int value = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  return error == std::errc() && end == all.data() + all.size() ? value : 0;
}

}  // namespace

std::optional<std::string> foreign_launcher(const EnvironmentLookup& variable, int mpi_ranks,
                                            std::string_view command) {
  const bool is_of_mpirun = variable("OMPI_COMM_WORLD_SIZE") != nullptr;
  for (const Launcher& launcher : kLaunchers) {
    const int processes = number(variable(launcher.size));
    const bool has_rank = std::ranges::any_of(launcher.ranks, [&](const char* rank) {
      return rank != nullptr && variable(rank) != nullptr;
    });
    if (processes <= 1 || processes == mpi_ranks || !has_rank) continue;
    if (!launcher.counts_beside_mpirun && (is_of_mpirun || mpi_ranks > 1)) continue;
    return fmt::format(
        "{}={}, from {}, counts {} processes, but MPI has {}: they would not train together; start "
        "them with mpirun -np {} {}{}, or unset {} if it is left over from another program",
        launcher.size, processes, launcher.name, processes,
        mpi_ranks == 1 ? "1 rank" : fmt::format("{} ranks", mpi_ranks), processes, command,
        launcher.other_way, launcher.size);
  }
  return std::nullopt;
}

}  // namespace dp
