// What a process finds out about itself and arranges. Much of it depends on how the program was
// started, so the tests start this program again: with the word "tell" first it runs no test, but
// tells what it found.
#include "app/process/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/skipped.hpp"

namespace dp {
namespace {

std::string own_path() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path));
  return {path, static_cast<std::size_t>(length > 0 ? length : 0)};
}

// What this program tells when the shell starts it with these words after, and these settings in
// front of its name.
std::vector<std::string> told(const std::string& settings, const std::string& words) {
  const std::string command = settings + " '" + own_path() + "' tell " + words;
  FILE* out = ::popen(command.c_str(), "r");
  EXPECT_NE(out, nullptr);
  std::vector<std::string> lines;
  char line[8192];
  while (std::fgets(line, sizeof(line), out) != nullptr) {
    lines.emplace_back(line, std::strcspn(line, "\n"));
  }
  EXPECT_EQ(::pclose(out), 0) << command;
  return lines;
}

// "tell": the command line; after a restart, if one is needed, the setting of OpenMP, the name that
// top shows and the number of cores.
int tell(char** argv) {
  const char* before = std::getenv("GOMP_SPINCOUNT");
  std::printf("spin count %s\n", before != nullptr ? before : "unset");
  std::fflush(stdout);
  restart_with_openmp_settings(argv);
  std::string name;
  std::getline(std::ifstream("/proc/self/comm"), name);
  std::printf("%s\n%s\n", command_line().c_str(), name.c_str());
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof(cores), &cores);
  for (const char* variable : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}) {
    if (std::getenv(variable) != nullptr) std::printf("%s is set\n", variable);
  }
  std::printf("%d cores\n", CPU_COUNT(&cores));
  return 0;
}

TEST(CommandLine, IsTheWordsAsTheyWereGiven) {
  const auto lines = told("GOMP_SPINCOUNT=1", "--log 'my run.h5' '' -- --compress=q8");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1], own_path() + " tell --log my run.h5  -- --compress=q8");
}

TEST(CommandLine, HasNoEmptyWordAtItsEnd) {
  const auto lines = told("GOMP_SPINCOUNT=1", "--quiet '' ''");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1], own_path() + " tell --quiet");
}

TEST(Restart, HappensOnceAndKeepsNameAndWords) {
  const auto lines = told("env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY", "--seed 7");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0], "spin count unset");
  EXPECT_EQ(lines[1], "spin count 20000");
  EXPECT_EQ(lines[2], own_path() + " tell --seed 7");
  // The kernel keeps 15 letters.
  const std::string path = own_path();
  EXPECT_EQ(lines[3], path.substr(path.rfind('/') + 1).substr(0, 15));
}

// OpenMP binds the main thread before main() when it has places: the mask would have one core.
TEST(Restart, TakesTheCoresOfOpenMp) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ASSERT_EQ(::sched_getaffinity(0, sizeof(cores), &cores), 0);
  const std::string all = fmt::format("{} cores", CPU_COUNT(&cores));
  for (const char* spins : {"env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY", "env GOMP_SPINCOUNT=1"}) {
    for (const char* places : {"OMP_PROC_BIND=true", "OMP_PROC_BIND=close OMP_PLACES=cores"}) {
      const auto lines = told(fmt::format("{} {}", spins, places), "");
      ASSERT_EQ(lines.size(), 5u) << places;
      EXPECT_EQ(lines.back(), all) << places;
    }
  }
  int first = 0;
  while (!CPU_ISSET(first, &cores)) ++first;
  // A list of the user's stays one.
  const auto lines = told(fmt::format("GOMP_SPINCOUNT=1 GOMP_CPU_AFFINITY={}", first), "");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines.back(), "1 cores");
}

TEST(Restart, LeavesTheUsersSettingsAlone) {
  const auto count = told("env -u OMP_WAIT_POLICY GOMP_SPINCOUNT=5", "");
  ASSERT_EQ(count.size(), 4u);
  EXPECT_EQ(count[0], "spin count 5");
  const auto policy = told("env -u GOMP_SPINCOUNT OMP_WAIT_POLICY=active", "");
  ASSERT_EQ(policy.size(), 4u);
  EXPECT_EQ(policy[0], "spin count unset");
}

// A terminal, or as much of one as a program can tell: the far end of a pseudo-terminal.
class Terminal {
 public:
  Terminal() : near_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_GE(near_, 0);
    EXPECT_EQ(::grantpt(near_), 0);
    EXPECT_EQ(::unlockpt(near_), 0);
    far_ = ::open(::ptsname(near_), O_RDWR | O_NOCTTY);
    EXPECT_GE(far_, 0);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    ::close(far_);
    ::close(near_);
  }
  [[nodiscard]] int file() const { return far_; }

 private:
  int near_, far_ = -1;
};

// output_is_watched() of a process whose standard output is `own`, and whose parent's is `parents`.
bool is_watched(int own, int parents, bool is_under_mpirun) {
  const auto wait_for = [](pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
  };
  std::fflush(stdout);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::dup2(parents, STDOUT_FILENO);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(own, STDOUT_FILENO);
      ::unsetenv("OMPI_COMM_WORLD_RANK");
      if (is_under_mpirun) ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
      _exit(output_is_watched() ? 1 : 0);
    }
    _exit(wait_for(child));
  }
  const int verdict = wait_for(parent);
  EXPECT_LE(verdict, 1);
  return verdict == 1;
}

TEST(OutputIsWatched, ByATerminalAlone) {
  const Terminal terminal;
  const int file = ::open("/dev/null", O_WRONLY);
  ASSERT_GE(file, 0);
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  EXPECT_TRUE(is_watched(terminal.file(), file, false));
  EXPECT_FALSE(is_watched(file, terminal.file(), false));
  EXPECT_FALSE(is_watched(pipe_ends[1], terminal.file(), false));
  for (const int end : {file, pipe_ends[0], pipe_ends[1]}) ::close(end);
}

// mpirun gives ranks a terminal of their own and passes on what they write to wherever its own
// output goes.
TEST(OutputIsWatched, WhereMpirunsIs) {
  const Terminal of_rank, of_mpirun;
  const int file = ::open("/dev/null", O_WRONLY);
  ASSERT_GE(file, 0);
  EXPECT_TRUE(is_watched(of_rank.file(), of_mpirun.file(), true));
  EXPECT_FALSE(is_watched(of_rank.file(), file, true));
  EXPECT_FALSE(is_watched(file, of_mpirun.file(), true));
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  // A pipe that nobody reads from any more is opened without waiting.
  ::close(pipe_ends[0]);
  EXPECT_FALSE(is_watched(of_rank.file(), pipe_ends[1], true));
  ::close(pipe_ends[1]);
  ::close(file);
}

TEST(PeakMemory, CountsWhatIsUsedAndNeverShrinks) {
  constexpr std::size_t kBytes = 96 << 20;
  const std::size_t before = peak_memory_bytes();
  EXPECT_GT(before, 1u << 20);
  std::size_t with;
  {
    std::vector<char> memory(kBytes);
    for (std::size_t i = 0; i < kBytes; i += 4096) *static_cast<volatile char*>(&memory[i]) = 1;
    with = peak_memory_bytes();
  }
  EXPECT_GE(with, before);
  EXPECT_GE(with, kBytes);
  // What other tests touched before may be free again, but counts.
  EXPECT_LE(with, before + kBytes + (32u << 20));
  EXPECT_GE(peak_memory_bytes(), with);
}

}  // namespace
}  // namespace dp

// In place of tests/support/test_main.cpp's.
int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "tell") == 0) return dp::tell(argv);
  testing::InitGoogleTest(&argc, argv);
  return dp::test::exit_code(RUN_ALL_TESTS() != 0);
}
