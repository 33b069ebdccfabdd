// Which environments of launchers do not fit MPI's number of ranks.
#include "comm/mpi/foreign_launcher.hpp"

#include <gtest/gtest.h>

#include <map>

namespace dp {
namespace {

using Environment = std::map<std::string, std::string>;

std::string found_in(const Environment& environment, int mpi_ranks) {
  const auto variable = [&environment](const char* name) {
    const auto at = environment.find(name);
    return at == environment.end() ? nullptr : at->second.c_str();
  };
  return foreign_launcher(variable, mpi_ranks, "python3 train.py").value_or("");
}

TEST(ForeignLauncher, NamesTheVariableAndTheCommand) {
  EXPECT_EQ(
      found_in({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, 1),
      "WORLD_SIZE=2, from torchrun, accelerate or Lightning, counts 2 processes, but MPI has 1 "
      "rank: they would not train together; start them with mpirun -np 2 python3 train.py, or "
      "unset WORLD_SIZE if it is left over from another program");
  const Environment lightning = {{"LOCAL_RANK", "0"}, {"NODE_RANK", "0"}, {"WORLD_SIZE", "4"}};
  EXPECT_NE(found_in(lightning, 1).find("mpirun -np 4 python3 train.py"), std::string::npos);
  for (const char* prefix : {"PMI_", "MV2_COMM_WORLD_"}) {
    const std::string size = std::string(prefix) + "SIZE";
    EXPECT_EQ(found_in({{std::string(prefix) + "RANK", "0"}, {size, "3"}}, 1).find(size + "=3, "),
              0U);
  }
  const Environment srun = {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}};
  EXPECT_NE(found_in(srun, 1).find("python3 train.py or srun --mpi=pmix, or unset SLURM_STEP"),
            std::string::npos);
  // torchrun below mpirun, or beside it.
  const Environment both = {{"OMPI_COMM_WORLD_SIZE", "2"}, {"RANK", "0"}, {"WORLD_SIZE", "8"}};
  EXPECT_NE(found_in(both, 2).find("MPI has 2 ranks"), std::string::npos);
}

TEST(ForeignLauncher, IsSilentWhereMpiKnowsTheProcesses) {
  EXPECT_EQ(found_in({}, 1), "");
  EXPECT_EQ(found_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, 1), "");
  EXPECT_EQ(found_in({{"RANK", "0"}, {"WORLD_SIZE", "4"}}, 4), "");
  EXPECT_EQ(found_in({{"WORLD_SIZE", "4"}}, 1), "") << "without a rank it may mean anything";
  EXPECT_EQ(found_in({{"RANK", "0"}, {"WORLD_SIZE", "2x"}}, 1), "");
  EXPECT_EQ(found_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}, 1), "");
  // A shell in an allocation, the script of sbatch, and the shell of salloc as a step.
  const Environment shell = {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}};
  EXPECT_EQ(found_in(shell, 1), "");
  Environment step = shell;
  step["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_EQ(found_in(step, 1), "");
  // mpirun in an allocation starts its daemons with srun, whose variables ranks inherit.
  step["SLURM_STEP_NUM_TASKS"] = "3";
  for (const int ranks : {1, 2, 8}) {
    step["OMPI_COMM_WORLD_SIZE"] = std::to_string(ranks);
    EXPECT_EQ(found_in(step, ranks), "");
  }
  // srun --mpi=pmix or pmi2, and two components of a heterogeneous job.
  const Environment srun = {
      {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  for (const int ranks : {2, 4}) EXPECT_EQ(found_in(srun, ranks), "");
}

}  // namespace
}  // namespace dp
