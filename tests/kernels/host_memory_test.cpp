// Tests which limit of a process's memory binds, with files in the kernel's format.
#include "kernels/host_memory.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace dp {
namespace {

namespace fs = std::filesystem;

// A host with 8 GiB free, and the files of its control groups as a test writes them.
class HostMemory : public testing::Test {
 protected:
  HostMemory()
      : root_(fs::temp_directory_path() / ("host_memory_test." + std::to_string(::getpid()))) {
    write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
    write("proc/self/status", "Name:\tx\nVmSize:\t 1024 kB\nVmData:\t 512 kB\n");
  }
  ~HostMemory() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] FreeMemory free(std::size_t processes = 1) const {
    return free_host_memory(processes, {(root_ / "proc").string(), (root_ / "cgroup").string()});
  }

 private:
  fs::path root_;
};

TEST_F(HostMemory, WhatTheHostHasIsSharedByItsProcesses) {
  EXPECT_EQ(free().bytes, 8ull << 30);
  EXPECT_EQ(free().limit, "the host's free memory");
  EXPECT_EQ(free(4).bytes, 2ull << 30);
}

TEST_F(HostMemory, AGroupOfVersion2) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("cgroup/outer/inner/memory.max", "max\n");
  write("cgroup/outer/inner/memory.current", "5\n");
  EXPECT_EQ(free().bytes, 8ull << 30);
  // The group around it binds; a third of what it holds is page cache.
  write("cgroup/outer/memory.max", "3221225472\n");
  write("cgroup/outer/memory.current", "1610612736\n");
  write("cgroup/outer/memory.stat", "anon 1\ninactive_file 268435456\nactive_file 268435456\n");
  EXPECT_EQ(free().bytes, 2ull << 30);
  EXPECT_EQ(free().limit, "the container's limit");
  EXPECT_EQ(free(2).bytes, 1ull << 30);
  write("cgroup/outer/inner/memory.max", "1048581\n");
  EXPECT_EQ(free().bytes, 1ull << 20);
}

TEST_F(HostMemory, AGroupOfVersion1WhosePathIsTheHosts) {
  write("proc/self/cgroup", "12:cpu:/x\n7:hugetlb,memory:/docker/1234\n");
  write("cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  write("cgroup/memory/memory.usage_in_bytes", "2147483648\n");
  write("cgroup/memory/memory.stat", "cache 9\ntotal_inactive_file 2147483648\n");
  EXPECT_EQ(free().bytes, 1ull << 30);
  write("cgroup/memory/memory.stat", "cache 9\n");
  EXPECT_EQ(free().bytes, 0u);
}

TEST_F(HostMemory, TheLimitsOfTheProcess) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer itself needs more address space than the limit of this test";
#endif
  for (const auto& [resource, name, used] : {std::tuple{RLIMIT_AS, "ulimit -v", 1u << 20},
                                             std::tuple{RLIMIT_DATA, "ulimit -d", 1u << 19}}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit limit{1ull << 30, 1ull << 30};
      ::setrlimit(resource, &limit);
      const FreeMemory left = free(4);  // other processes take nothing from it
      ::_exit(left.limit == name && left.bytes == (1ull << 30) - used && left.is_of_process ? 0
                                                                                            : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << name;
  }
}

TEST(HostMemoryHere, IsSomething) { EXPECT_GT(free_host_memory().bytes, 0u); }

}  // namespace
}  // namespace dp
