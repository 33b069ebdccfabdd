// CPU quotas, read from folders that look like /proc and /sys.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "app/process/cpu_limits.hpp"

namespace dp {
namespace {

namespace fs = std::filesystem;

class CpuQuotaTest : public testing::Test {
 protected:
  CpuQuotaTest()
      : root_(fs::temp_directory_path() / ("dp_cpu_quota." + std::to_string(::getpid()))) {
    fs::create_directories(root_);
  }
  ~CpuQuotaTest() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  // As the kernel's files show a process of version 2.
  void v2(const std::string& cgroup, const std::string& mounted = "/") const {
    write("proc/self/cgroup", "0::" + cgroup + "\n");
    write("proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n31 22 0:26 " + mounted +
                                     " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  }
  void v1(const std::string& cgroup, const std::string& mounted = "/") const {
    write("proc/self/cgroup", "9:memory:/else\n3:cpu,cpuacct:" + cgroup + "\n2:cpuset:/\n0::/\n");
    write("proc/self/mountinfo",
          "30 22 0:25 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n31 22 0:26 " + mounted +
              " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  }
  [[nodiscard]] double cores() const {
    const auto quota = cpu_quota(root_);
    return quota ? quota->cores : 0.0;
  }

  fs::path root_;
};

TEST_F(CpuQuotaTest, NoneWithoutFilesAndWithoutLimit) {
  EXPECT_EQ(cores(), 0.0);
  v2("/");
  EXPECT_EQ(cores(), 0.0);
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), 0.0);
  v1("/a");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 0.0);
}

TEST_F(CpuQuotaTest, DamagedFilesAreNoLimit) {
  for (const char* text : {"", "max", "150000", "x y", "150000 0", "-5 100000"}) {
    v2("/");
    write("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(cores(), 0.0) << text;
  }
  write("proc/self/cgroup", "nothing\n0:\n::::\n");
  write("proc/self/mountinfo", "nothing\n - \n");
  EXPECT_EQ(cores(), 0.0);
}

TEST_F(CpuQuotaTest, SmallestOfTheCgroupAndThoseAroundIt) {
  v2("/a/b");
  write("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/c/cpu.max", "100000 100000\n");  // not around it
  EXPECT_DOUBLE_EQ(cores(), 4.0);
  write("sys/fs/cgroup/a/cpu.max", "75000 50000\n");
  EXPECT_DOUBLE_EQ(cores(), 1.5);
  EXPECT_EQ(cpu_quota(root_)->threads(), 2);
  write("sys/fs/cgroup/cpu.max", "30000 100000\n");
  EXPECT_DOUBLE_EQ(cores(), 0.3);
  EXPECT_EQ(cpu_quota(root_)->threads(), 1);
}

TEST_F(CpuQuotaTest, LimitsTheThreads) {
  const int without = usable_threads(root_);
  EXPECT_GE(without, 1);
  v2("/");
  write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(usable_threads(root_), 1);
  write("sys/fs/cgroup/cpu.max", "6400000 100000\n");
  EXPECT_EQ(usable_threads(root_), std::min(without, 64));
}

// The mount shows the container's own cgroup; the path may be the host's or the container's.
TEST_F(CpuQuotaTest, OwnCgroupIsTheRootInAContainer) {
  write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  for (const char* cgroup : {"/", "/docker/4f", "/../4f", "/elsewhere"}) {
    v2(cgroup, "/docker/4f");
    EXPECT_DOUBLE_EQ(cores(), 2.5) << cgroup;
  }
  write("sys/fs/cgroup/job/cpu.max", "100000 100000\n");
  v2("/docker/4f/job", "/docker/4f");
  EXPECT_DOUBLE_EQ(cores(), 1.0);
}

TEST_F(CpuQuotaTest, VersionOne) {
  v1("/a/b");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cores(), 2.0);
  write("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "150000\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cores(), 1.5);
}

TEST_F(CpuQuotaTest, GroupTellsWhoSharesAQuota) {
  write("sys/fs/cgroup/a/cpu.max", "100000 100000\n");
  write("sys/fs/cgroup/b/cpu.max", "100000 100000\n");
  v2("/a/x");
  const auto first = cpu_quota(root_);
  v2("/a/y");
  const auto second = cpu_quota(root_);
  v2("/b");
  const auto other = cpu_quota(root_);
  ASSERT_TRUE(first && second && other);
  EXPECT_EQ(first->group, second->group);
  EXPECT_NE(first->group, other->group);
}

}  // namespace
}  // namespace dp
