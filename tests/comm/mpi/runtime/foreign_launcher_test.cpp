// Which environments of launchers do not fit MPI's number of ranks.
#include "comm/mpi/runtime/foreign_launcher.hpp"

#include <gtest/gtest.h>

#include <map>

namespace dp {
namespace {

using Environment = std::map<std::string, std::string>;

std::string found_in(const Environment& environment, const MpiPlace& mpi) {
  const auto variable = [&environment](const char* name) {
    const auto at = environment.find(name);
    return at == environment.end() ? nullptr : at->second.c_str();
  };
  return foreign_launcher(variable, mpi, "python3 train.py").value_or("");
}

std::string found_in(const Environment& environment, int ranks, int rank = 0) {
  return found_in(environment, {.rank = rank, .ranks = ranks, .world_ranks = ranks});
}

testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << text << "\" has no \"" << part << '"';
}

TEST(ForeignLauncher, NamesTheVariableAndTheCommand) {
  EXPECT_EQ(found_in({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, 1),
            "WORLD_SIZE=2 (set by torchrun): 2 processes were started, but MPI has 1 rank, so each "
            "would train alone. Start them with mpirun -np 2 python3 train.py. If WORLD_SIZE is "
            "left over, unset it.");
  const Environment lightning = {{"LOCAL_RANK", "0"}, {"NODE_RANK", "0"}, {"WORLD_SIZE", "4"}};
  EXPECT_TRUE(has(found_in(lightning, 1), "mpirun -np 4 python3 train.py"));
  const Environment srun = {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}};
  EXPECT_TRUE(has(found_in(srun, 1), "python3 train.py or srun --mpi=pmix. If SLURM_STEP_"));
  // torchrun below mpirun, or beside it.
  const Environment both = {{"OMPI_COMM_WORLD_SIZE", "2"}, {"RANK", "0"}, {"WORLD_SIZE", "8"}};
  EXPECT_TRUE(has(found_in(both, 2), "MPI has 2 ranks, so they would not train together"));
}

constexpr const char* kCounts[][2] = {{"WORLD_SIZE", "NODE_RANK"},
                                      {"LOCAL_WORLD_SIZE", "LOCAL_RANK"},
                                      {"HOROVOD_SIZE", "HOROVOD_RANK"},
                                      {"PMI_SIZE", "PMI_RANK"},
                                      {"MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
                                      {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
                                      {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"},
                                      {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
                                      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
                                      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}};

TEST(ForeignLauncher, CountsTheProcessesOfEveryLauncher) {
  for (const auto& [size, rank] : kCounts) {
    const std::string text = found_in({{size, "3"}, {rank, "0"}}, 1);
    EXPECT_EQ(text.find(std::string(size) + "=3 (set by "), 0U) << text;
    EXPECT_TRUE(has(text, "mpirun -np 3 python3 train.py"));
    EXPECT_EQ(found_in({{size, "1"}, {rank, "0"}}, 1), "") << size;
    EXPECT_EQ(found_in({{size, "3x"}, {rank, "0"}}, 1), "") << size;
    EXPECT_EQ(found_in({{size, "3"}, {rank, "2"}}, 3, 2), "") << size;
  }
  // The launcher counts this host's processes; MPI may have other hosts as well.
  for (const char* size : {"2", "4"}) {
    EXPECT_EQ(found_in({{"LOCAL_WORLD_SIZE", size}, {"LOCAL_RANK", "0"}}, 4), "");
  }
  EXPECT_TRUE(has(found_in({{"LOCAL_WORLD_SIZE", "8"}, {"LOCAL_RANK", "0"}}, 4), "on this host"));
}

// A first process alone may be all; a second one is not.
TEST(ForeignLauncher, KnowsAProcessThatIsNotTheFirst) {
  for (const char* rank :
       {"RANK", "LOCAL_RANK", "HOROVOD_RANK", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID",
        "MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "PALS_RANKID",
        "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}) {
    EXPECT_EQ(found_in({{rank, "0"}}, 1), "") << rank;
    EXPECT_EQ(found_in({{rank, "1"}}, 2, 1), "") << rank;
    const std::string text = found_in({{rank, "1"}}, 1);
    EXPECT_EQ(text.find(std::string(rank) + "=1 (set by "), 0U) << text;
    EXPECT_TRUE(has(text, "this is process 1 of several, but MPI has 1 rank"));
    EXPECT_TRUE(has(text, "mpirun -np N python3 train.py"));
  }
}

// An mpirun of another Open MPI or PMIx starts processes that MPI does not connect. Its variables
// switch off the rows of PMI and Slurm, but not its own.
TEST(ForeignLauncher, KnowsAnotherMpirun) {
  const Environment ranks = {{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "0"}};
  EXPECT_EQ(found_in(ranks, 1),
            "OMPI_COMM_WORLD_SIZE=2 (set by an mpirun that does not belong to this program's MPI): "
            "2 processes were started, but MPI has 1 rank, so each would train alone. Start them "
            "with the Open MPI that this program uses: mpirun -np 2 python3 train.py. If "
            "OMPI_COMM_WORLD_SIZE is left over, unset it.");
  EXPECT_EQ(found_in(ranks, 2), "");
}

// torchrun has started two processes, and each of them an mpirun of two ranks.
TEST(ForeignLauncher, ComparesTheNumbersOfRanks) {
  for (const std::string prefix : {"", "HOROVOD_"}) {
    const auto told = [&](const char* number, int rank) {
      return found_in({{"OMPI_COMM_WORLD_SIZE", "2"},
                       {prefix + "RANK", number},
                       {prefix + "WORLD_SIZE", "2"},
                       {prefix + "SIZE", "2"}},
                      2, rank);
    };
    EXPECT_EQ(told("0", 0), "");
    EXPECT_EQ(told("1", 1), "");
    EXPECT_TRUE(has(told("1", 0), "does not fit rank 0 of MPI"));
    EXPECT_TRUE(has(told("0", 1), "Start mpirun -np 2 python3 train.py once"));
  }
}

// torchrun may count the ranks of a group, mpirun counts all.
TEST(ForeignLauncher, KnowsAGroupOfRanks) {
  Environment ranks = {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}};
  EXPECT_EQ(found_in(ranks, {.rank = 0, .ranks = 1, .world_ranks = 4}), "");
  ranks.insert({{"WORLD_SIZE", "2"}, {"RANK", "1"}});
  EXPECT_EQ(found_in(ranks, {.rank = 1, .ranks = 2, .world_ranks = 4}), "");
  EXPECT_TRUE(has(found_in(ranks, {.rank = 0, .ranks = 2, .world_ranks = 4}), "does not fit"));
  EXPECT_TRUE(has(found_in(ranks, {.rank = 3, .ranks = 4, .world_ranks = 4}), "WORLD_SIZE=2"));
}

TEST(ForeignLauncher, IsSilentWhereMpiKnowsTheProcesses) {
  EXPECT_EQ(found_in({}, 1), "");
  EXPECT_EQ(found_in({{"WORLD_SIZE", "4"}}, 1), "") << "without a rank it may mean anything";
  // A shell in an allocation, the script of sbatch, and the shell of salloc as a step.
  const Environment shell = {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}};
  EXPECT_EQ(found_in(shell, 1), "");
  Environment step = shell;
  step["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_EQ(found_in(step, 1), "");
  // mpirun in an allocation starts its daemons with srun, whose variables ranks inherit.
  step["SLURM_STEP_NUM_TASKS"] = "3";
  step["SLURM_PROCID"] = "2";
  for (const int ranks : {1, 2, 8}) {
    step["OMPI_COMM_WORLD_SIZE"] = std::to_string(ranks);
    EXPECT_EQ(found_in(step, ranks), "");
  }
  // srun --mpi=pmix or pmi2, and two components of a heterogeneous job.
  const Environment srun = {
      {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
  for (const int ranks : {2, 4}) EXPECT_EQ(found_in(srun, ranks), "");
}

// srun -n 8 --pty bash: the other seven shells have ended at once.
TEST(ForeignLauncher, LeavesTheShellOfSrunAlone) {
  Environment shell = {{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "0"}, {"PMIX_RANK", "0"}};
  EXPECT_NE(found_in(shell, 1), "");
  shell["SLURM_PTY_PORT"] = "40123";
  EXPECT_EQ(found_in(shell, 1), "");
  shell.insert({{"PMI_SIZE", "8"}, {"PMI_RANK", "0"}});
  EXPECT_EQ(found_in(shell, 1), "");
  // Another launcher in that shell, and the same srun's other tasks.
  shell["PMI_SIZE"] = "2";
  EXPECT_TRUE(has(found_in(shell, 1), "PMI_SIZE=2"));
  shell["PMI_SIZE"] = "8";
  shell["PMI_RANK"] = "3";
  EXPECT_TRUE(has(found_in(shell, 1), "PMI_RANK=3"));
  shell = {{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "1"}, {"SLURM_PTY_PORT", "40123"}};
  EXPECT_TRUE(has(found_in(shell, 1), "SLURM_PROCID=1"));
}

}  // namespace
}  // namespace dp
