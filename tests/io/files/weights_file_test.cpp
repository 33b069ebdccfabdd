// Tests that a weights file is always whole: after a loss of power, on a full disk, beside a link.
#include "io/files/weights_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/io/temp_folder.hpp"
#include "tests/support/file_faults.hpp"

namespace dp {
namespace {

WeightsFile weights_of(float value) {
  return {.model = "resnet20",
          .classes = 10,
          .image = {3, 32, 32},
          .normalization = {},
          .last = {.epoch = 1,
                   .test_accuracy = 0.5,
                   .test_loss = 1.0,
                   .tensors = {{.name = "w", .shape = {2}, .values = {value, value}}}},
          .best = {}};
}

// The file system calls, except writes, in a list whose lines are "1 create /tmp/...".
std::string calls_in(const std::string& list) {
  std::ifstream lines(list);
  std::string calls, number, call, path;
  while (lines >> number >> call >> path) {
    if (call != "pwrite" && call != "write") calls += call + " ";
  }
  return calls;
}

// A loss of power leaves the old file or the new one, never a part of one.
TEST(WeightsFileTest, IsOnTheDiskBeforeItHasItsName) {
  const TempFolder folder, lists;
  const std::string path = folder / "w.h5";
  for (const bool replaces : {false, true}) {
    const std::string list = lists / (replaces ? "second" : "first");
    set_file_faults((folder / "").c_str(), 0, FileFault::none, list.c_str());
    write_weights(path, weights_of(replaces ? 2 : 1), replaces);
    set_file_faults("", 0, FileFault::none);
    const std::string calls = calls_in(list);
    ASSERT_NE(calls.find("rename"), std::string::npos) << calls;
    EXPECT_LT(calls.find("fsync"), calls.find("rename")) << calls;
  }
  EXPECT_EQ(read_weights(path, WhichWeights::last).last.tensors[0].values[1], 2.0f);
}

// In a folder that others can write, a link may have the name that a file has meanwhile.
TEST(WeightsFileTest, DoesNotWriteThroughAPlantedLink) {
  const TempFolder folder;
  const std::string path = folder / "w.h5", part = path + ".part", victim = folder / "victim";
  std::ofstream(victim) << "precious";
  const auto victim_text = [&] {
    std::string text;
    std::getline(std::ifstream(victim), text);
    return text;
  };
  std::filesystem::create_symlink(victim, part);
  EXPECT_THROW(write_weights(path, weights_of(1), false), Error);
  EXPECT_EQ(victim_text(), "precious");
  std::filesystem::remove(part);
  write_weights(path, weights_of(1), false);
  float value = 2;
  for (const bool is_hard : {false, true}) {
    if (is_hard) {
      std::filesystem::create_hard_link(victim, part);
    } else {
      std::filesystem::create_symlink(victim, part);
    }
    write_weights(path, weights_of(value), true);
    EXPECT_EQ(victim_text(), "precious");
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(path)));
    EXPECT_EQ(read_weights(path, WhichWeights::last).last.tensors[0].values[1], value++);
  }
}

// The disk fails at any call: the file before stays, and the next write replaces it.
TEST(WeightsFileTest, AFullDiskLeavesTheFileBefore) {
  const TempFolder folder, lists;
  const std::string path = folder / "w.h5";
  write_weights(path, weights_of(1), false);
  set_file_faults((folder / "").c_str(), 0, FileFault::none, (lists / "all").c_str());
  write_weights(path, weights_of(2), true);
  const long calls = counted_file_calls();
  for (long at = 1; at <= calls; ++at) {
    set_file_faults("", 0, FileFault::none);
    write_weights(path, weights_of(3), true);
    set_file_faults((folder / "").c_str(), at, FileFault::once);
    std::string why;
    try {
      write_weights(path, weights_of(4), true);
    } catch (const Error& error) {
      why = error.what();
    }
    set_file_faults("", 0, FileFault::none);
    const float value = read_weights(path, WhichWeights::last).last.tensors[0].values[0];
    EXPECT_EQ(value, why.empty() ? 4.0f : 3.0f) << at << ": " << why;
    if (!why.empty()) {
      EXPECT_TRUE(why.starts_with("exported weights " + path)) << why;
    }
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  }
}

}  // namespace
}  // namespace dp
