// Which cores a rank takes. mpirun binds ranks to a core each where there are few of them: the
// tests begin from the narrowest affinity there is.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "app/process/process.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

std::set<int> affinity(pid_t process = 0) {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(process, sizeof(set), &set), 0);
  std::set<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.insert(core);
  }
  return cores;
}

void bind_to(const std::set<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(set), &set), 0);
}

// "0-3,8"
std::set<int> parse(const std::string& text) {
  std::set<int> cores;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const std::size_t dash = word.find('-');
    const int first = std::stoi(word);
    const int last = dash == std::string::npos ? first : std::stoi(word.substr(dash + 1));
    EXPECT_LE(first, last) << text;
    for (int core = first; core <= last; ++core) EXPECT_TRUE(cores.insert(core).second) << text;
  }
  return cores;
}

class TakeCpuShare : public testing::Test {
 protected:
  TakeCpuShare() : before_(affinity()) {
    // mpirun's own mask counts, and without mpirun the narrow one.
    ::unsetenv("OMPI_MCA_hwloc_base_binding_policy");
    all_ = before_;
    if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) all_ = affinity(::getppid());
    bind_to({*all_.begin()});
    if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) all_ = affinity();
  }
  ~TakeCpuShare() override { bind_to(before_); }

  [[nodiscard]] int cores() const { return static_cast<int>(all_.size()); }
  // A rank's whole cores, if each gets one.
  [[nodiscard]] int share_of_cores() const { return cores() / comm_.size(); }

  Communicator comm_;
  std::set<int> before_, all_;
};

TEST_F(TakeCpuShare, CoresAreSharedOutEvenly) {
  const CpuShare share = take_cpu_share(comm_, 0);
  EXPECT_EQ(share.cores_on_host, cores());
  EXPECT_EQ(share.threads, std::max(1, share_of_cores()));
  EXPECT_DOUBLE_EQ(share.cores_per_rank, static_cast<double>(cores()) / comm_.size());
  const std::set<int> mine = affinity();
  EXPECT_EQ(parse(share.cores), mine) << share.cores;

  // Nobody else's, where there are enough of them.
  std::vector<std::int64_t> users(CPU_SETSIZE);
  for (const int core : mine) users[static_cast<std::size_t>(core)] = 1;
  comm_.all_sum(users);
  if (share_of_cores() >= 1) {
    EXPECT_EQ(mine.size(), static_cast<std::size_t>(share.threads));
    EXPECT_EQ(*std::max_element(users.begin(), users.end()), 1);
  } else {
    EXPECT_EQ(mine, all_);
  }
}

TEST_F(TakeCpuShare, ThreadsStartedLaterInheritIt) {
  const CpuShare share = take_cpu_share(comm_, 0);
  std::set<int> of_thread;
  std::thread([&] { of_thread = affinity(); }).join();
  EXPECT_EQ(of_thread, parse(share.cores));
}

// OpenMP's threads would stand on each other's feet on fewer cores.
TEST_F(TakeCpuShare, WhoWantsMoreThreadsMayRunEverywhere) {
  const int wanted = std::max(1, share_of_cores()) + 1;
  const CpuShare share = take_cpu_share(comm_, wanted);
  EXPECT_EQ(share.threads, wanted);
  EXPECT_DOUBLE_EQ(share.cores_per_rank, static_cast<double>(cores()) / comm_.size());
  EXPECT_EQ(affinity(), all_);
  EXPECT_EQ(parse(share.cores), all_);
}

TEST_F(TakeCpuShare, WhoWantsFewerKeepsTheWholeShare) {
  const CpuShare share = take_cpu_share(comm_, 1);
  EXPECT_EQ(share.threads, 1);
  const std::size_t expected =
      share_of_cores() >= 1 ? static_cast<std::size_t>(share_of_cores()) : all_.size();
  EXPECT_EQ(affinity().size(), expected);
}

// Each rank decides on its own how many threads it wants.
TEST_F(TakeCpuShare, RanksMayWantDifferently) {
  DP_NEEDS_RANKS(comm_, 2);
  const bool is_greedy = comm_.rank() == 1;
  const CpuShare share = take_cpu_share(comm_, is_greedy ? cores() + 1 : 0);
  EXPECT_EQ(share.threads, is_greedy ? cores() + 1 : std::max(1, share_of_cores()));
  if (is_greedy || share_of_cores() == 0) {
    EXPECT_EQ(affinity(), all_);
  } else {
    EXPECT_EQ(affinity().size(), static_cast<std::size_t>(share_of_cores()));
  }
}

// A quota of one and a half cores, in files as the kernel has them.
TEST_F(TakeCpuShare, RanksShareAQuota) {
  namespace fs = std::filesystem;
  std::string name;
  if (comm_.rank() == 0) {
    const fs::path root =
        fs::temp_directory_path() / ("dp_cpu_share." + std::to_string(::getpid()));
    fs::create_directories(root / "proc/self");
    fs::create_directories(root / "cg");
    std::ofstream(root / "proc/self/cgroup") << "0::/\n";
    std::ofstream(root / "proc/self/mountinfo") << "1 1 0:1 / /cg rw - cgroup2 cgroup2 rw\n";
    std::ofstream(root / "cg/cpu.max") << "150000 100000\n";
    name = root.string();
  }
  comm_.broadcast(name);
  const CpuShare share = take_cpu_share(comm_, 0, name);
  const CpuShare greedy = take_cpu_share(comm_, 3, name);
  comm_.barrier();
  if (comm_.rank() == 0) fs::remove_all(name);

  const double cores_per_rank = static_cast<double>(cores()) / comm_.size();
  EXPECT_EQ(share.threads, std::clamp(2 / comm_.size(), 1, std::max(1, share_of_cores())));
  EXPECT_DOUBLE_EQ(share.cores_per_rank, std::min(cores_per_rank, 1.5 / comm_.size()));
  EXPECT_EQ(share.ranks_on_host, comm_.size());
  // A quota names no cores.
  EXPECT_EQ(static_cast<int>(parse(share.cores).size()),
            share_of_cores() >= 1 ? share_of_cores() : cores());
  EXPECT_EQ(greedy.threads, 3);
  EXPECT_NE(greedy.limits.find("--threads 3 is more than the CPU quota of 1.5 cores allows"),
            std::string::npos)
      << greedy.limits;
}

// Ranks in two cgroups of 0.8 cores each, in a third one of 1 core: each has a root of its own that
// leads to the same cgroups.
TEST_F(TakeCpuShare, QuotasOfOuterGroupsAreSharedByMoreRanks) {
  namespace fs = std::filesystem;
  std::string name;
  if (comm_.rank() == 0) {
    const fs::path base =
        fs::temp_directory_path() / ("dp_cpu_nested." + std::to_string(::getpid()));
    for (const char* group : {"cg/p/0", "cg/p/1"}) {
      fs::create_directories(base / group);
      std::ofstream(base / group / "cpu.max") << "80000 100000\n";
    }
    std::ofstream(base / "cg/p/cpu.max") << "100000 100000\n";
    for (const char* group : {"0", "1"}) {
      const fs::path root = base / group;
      fs::create_directories(root / "proc/self");
      std::ofstream(root / "proc/self/cgroup") << "0::/p/" << group << "\n";
      std::ofstream(root / "proc/self/mountinfo") << "1 1 0:1 / /cg rw - cgroup2 cgroup2 rw\n";
      fs::create_directory_symlink(base / "cg", root / "cg");
    }
    name = base.string();
  }
  comm_.broadcast(name);
  const CpuShare share =
      take_cpu_share(comm_, 0, fs::path(name) / std::to_string(comm_.rank() % 2));
  comm_.barrier();
  if (comm_.rank() == 0) fs::remove_all(name);

  const int in_group = (comm_.size() + 1 - comm_.rank() % 2) / 2;
  const double of_group = 0.8 / in_group, of_all = 1.0 / comm_.size();
  EXPECT_DOUBLE_EQ(share.cores_per_rank,
                   std::min({static_cast<double>(cores()) / comm_.size(), of_group, of_all}));
  EXPECT_EQ(share.threads, 1);
}

TEST_F(TakeCpuShare, TakenTwiceIsTheSame) {
  const CpuShare first = take_cpu_share(comm_, 0), second = take_cpu_share(comm_, 0);
  EXPECT_EQ(first.cores_on_host, second.cores_on_host);
  EXPECT_EQ(first.threads, second.threads);
  EXPECT_EQ(first.cores_per_rank, second.cores_per_rank);
  EXPECT_EQ(first.cores, second.cores);
}

}  // namespace
}  // namespace dp
