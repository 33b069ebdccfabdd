// Tests the fault injection itself: every call counts once, and each kind of fault happens as
// planned.
#include "tests/support/file_faults.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/io/temp_folder.hpp"

namespace dp {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Writes twice, and gives the file its name; the number of the first call that fails with ENOSPC,
// 0 if none does, 100 if one fails otherwise or a write is short.
int write_in_steps(const TempFolder& folder) {
  const std::string part = folder / "file.part", path = folder / "file";
  const auto judged = [](long result, long wanted, int number) {
    if (result == wanted) return 0;
    return result < 0 && errno == ENOSPC ? number : 100;
  };
  const int file = ::open(part.c_str(), O_CREAT | O_WRONLY, 0666);
  if (file < 0) return judged(file, 0, 1);
  int first = 0;
  const auto note = [&](int verdict) {
    if (first == 0) first = verdict;
  };
  note(judged(::write(file, "abcd", 4), 4, 2));
  note(judged(::pwrite(file, "efgh", 4, 4), 4, 3));
  note(judged(::fsync(file), 0, 4));
  note(judged(::close(file), 0, 5));
  note(judged(std::rename(part.c_str(), path.c_str()), 0, 6));
  const int of_folder = ::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY);
  note(judged(::fsync(of_folder), 0, 7));
  ::close(of_folder);
  return first;
}

constexpr long kCalls = 7;

// The wait status of a process that writes under a plan.
int status_of(const TempFolder& folder, long at, FileFault fault) {
  const pid_t writer = ::fork();
  if (writer == 0) {
    set_file_faults((folder / "").c_str(), at, fault);
    ::_exit(write_in_steps(folder));
  }
  int status = 0;
  EXPECT_EQ(::waitpid(writer, &status, 0), writer);
  return status;
}

TEST(FileFaults, EveryCallCountsOnceAndIsListed) {
  const TempFolder folder, other;
  set_file_faults((folder / "").c_str(), 0, FileFault::full, (other / "list").c_str());
  EXPECT_EQ(write_in_steps(folder), 0);
  EXPECT_EQ(write_in_steps(other), 0);
  EXPECT_EQ(counted_file_calls(), kCalls);
  set_file_faults("", 0, FileFault::none);
  const std::string path = folder / "file", part = path + ".part";
  EXPECT_EQ(contents(other / "list"), "1 create " + part + "\n2 write " + part + "\n3 pwrite " +
                                          part + "\n4 fsync " + part + "\n5 close " + part +
                                          "\n6 rename " + path + "\n7 fsync " +
                                          folder.path().string() + "\n");
}

TEST(FileFaults, KilledBeforeWithinAndAfterACall) {
  for (const FileFault fault :
       {FileFault::kill_before, FileFault::kill_within, FileFault::kill_after}) {
    for (long at = 1; at <= kCalls; ++at) {
      const TempFolder folder;
      const int status = status_of(folder, at, fault);
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << at;
      const long done = fault == FileFault::kill_after ? at : at - 1;  // calls
      EXPECT_EQ(std::filesystem::exists(folder / "file.part"), done >= 1 && done < 6) << at;
      EXPECT_EQ(std::filesystem::exists(folder / "file"), done >= 6) << at;
      std::string written = done >= 3 ? "abcdefgh" : done == 2 ? "abcd" : "";
      if (fault == FileFault::kill_within && at == 2) written = "ab";
      if (fault == FileFault::kill_within && at == 3) written = "abcdef";
      EXPECT_EQ(contents(folder / "file") + contents(folder / "file.part"), written) << at;
    }
  }
}

TEST(FileFaults, AFullDiskStaysFullUnlessItIsFullOnce) {
  for (long at = 1; at <= kCalls; ++at) {
    const TempFolder full, once;
    EXPECT_EQ(WEXITSTATUS(status_of(full, at, FileFault::full)), at);
    EXPECT_EQ(WEXITSTATUS(status_of(once, at, FileFault::once)), at);
    EXPECT_EQ(contents(full / (at == 6 ? "file.part" : "file")), at <= 2   ? ""
                                                                 : at == 3 ? "abcd"
                                                                           : "abcdefgh");
    // The second write goes to its place behind a hole.
    if (at == 2) {
      EXPECT_EQ(contents(once / "file"), std::string("\0\0\0\0efgh", 8));
    }
  }
}

TEST(FileFaults, AShortWriteIsHalfAndTheDiskIsFullAfterIt) {
  const TempFolder folder;
  EXPECT_EQ(WEXITSTATUS(status_of(folder, 2, FileFault::short_write)), 100);
  EXPECT_EQ(contents(folder / "file"), "ab");
}

TEST(FileFaults, ThePreloadedLibraryReadsTheEnvironment) {
  const TempFolder folder;
  const auto run = [&](const std::string& variables) {
    const std::string command = "DP_FAULTS_BELOW='" + folder / "" + "' " + variables +
                                " ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0"
                                " LD_PRELOAD=" DP_FILE_FAULTS
                                " sh -c 'echo one > \"$0/a\"; "
                                "echo two >> \"$0/a\"' '" +
                                folder.path().string() + "' 2> '" + folder / "said" + "'";
    return std::system(command.c_str());
  };
  EXPECT_EQ(run(""), 0);
  EXPECT_EQ(contents(folder / "a"), "one\ntwo\n");
  EXPECT_NE(contents(folder / "said").find("file faults: 4 calls"), std::string::npos);
  EXPECT_NE(run("DP_FAULTS_AT=2 DP_FAULTS_KIND=kill-before"), 0);
  EXPECT_EQ(contents(folder / "a"), "");
  EXPECT_EQ(run("DP_FAULTS_AT=2 DP_FAULTS_KIND=kill-before DP_FAULTS_RANK=1"), 0);
  EXPECT_EQ(contents(folder / "a"), "one\ntwo\n");
}

}  // namespace
}  // namespace dp
