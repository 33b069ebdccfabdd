// Checkpoints of several ranks that share a folder.
#include "app/checkpoint/checkpoints.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint_head.hpp"
#include "comm/reducer/reducer.hpp"
#include "tests/io/temp_folder.hpp"
#include "tests/support/file_faults.hpp"

namespace dp {
namespace {

class CheckpointsTest : public testing::Test {
 protected:
  CheckpointsTest() {
    if (comm_.rank() == 0) folder_.emplace();
    if (folder_) path_ = folder_->path().string();
    comm_.broadcast(path_);
    reducer_.emplace(comm_, gradient_, std::vector<Bucket>{}, ReducerOptions{.comm_timeout_s = 30});
  }
  ~CheckpointsTest() override {
    set_file_faults("", 0, FileFault::none);
    await_all();  // before the folder is removed
  }
  void await_all() {
    reducer_->run([](Communicator& c) { c.barrier(); });
  }

  [[nodiscard]] CheckpointOptions options() {
    return {.folder = path_,
            .every = {},
            .keep = 2,
            .attempt = 0xabc,
            .timeout_s = 5,
            .on_complete = [this](const CheckpointId& id) { completed_.push_back(id.step); },
            .warn = [this](const std::string& line) { warnings_ += line + "\n"; }};
  }
  void write(Checkpoints& checkpoints, std::uint64_t step) {
    StateList list;
    list.values("first", std::span(first_), StateShare::replicated);
    list.values("second", std::span(second_), StateShare::replicated);
    list.values("own", std::span(own_), StateShare::own);
    checkpoints.write(step, list, {.texts = {{std::string(kHeadEntry), ""}}, .log = {}});
    checkpoints.finish();
  }
  [[nodiscard]] std::size_t files(const std::string& ending) const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      count += entry.path().extension() == ending;
    }
    return count;
  }
  // The number of the call that gives rank 0's file its last name, counted in an undisturbed one.
  long call_of_last_rename(Checkpoints& checkpoints) {
    const std::string list = path_ + fmt::format("-calls{}", comm_.rank());
    set_file_faults((path_ + "/").c_str(), 0, FileFault::none, list.c_str());
    write(checkpoints, 1);
    set_file_faults("", 0, FileFault::none);
    std::ifstream lines(list);
    long number = 0, at = 0;
    for (std::string call, path; lines >> number >> call >> path;) {
      if (call == "rename" && path.ends_with(".ckpt")) at = number;
    }
    std::filesystem::remove(list);
    return at;
  }

  Communicator comm_;
  std::unique_ptr<Device> device_ = make_device({.threads = 1, .tune = false});
  std::vector<float> gradient_ = std::vector<float>(8);
  std::vector<float> first_ = {1, 2, 3}, second_ = {4, 5},
                     own_ = {static_cast<float>(comm_.rank())};
  std::optional<Reducer> reducer_;
  std::optional<TempFolder> folder_;  // on rank 0
  std::string path_, warnings_;
  std::vector<std::uint64_t> completed_;
};

// The ranks that differ are the few, also if rank 0 is one of them.
TEST_F(CheckpointsTest, NamesTheRankAndTheTensorThatDiffer) {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  if (ranks < 2) GTEST_SKIP() << "one rank differs from nobody";
  Checkpoints checkpoints(*device_, *reducer_, options());
  write(checkpoints, 1);
  EXPECT_EQ(files(".ckpt"), ranks);
  if (comm_.rank() == 0) second_[1] = -5;
  std::string message;
  try {
    write(checkpoints, 2);
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
    message = error.what();
  }
  // With two ranks nobody knows which one is right.
  EXPECT_TRUE(
      message.starts_with(fmt::format("the replicas differ in the checkpoint of step 2, first in "
                                      "second (8 bytes): rank {} on host ",
                                      ranks == 2 ? 1 : 0)))
      << message;
  EXPECT_NE(message.find(" on the other ranks. It is not kept. The cause is "), std::string::npos)
      << message;
  if (ranks > 2) {
    EXPECT_EQ(message.find("rank 1"), std::string::npos) << message;
  }
  await_all();  // all have removed theirs
  EXPECT_EQ(files(".ckpt"), ranks);
  EXPECT_EQ(files(".waiting"), 0u);
}

// A file that cannot get its last name is told, and the checkpoint does not count until it is
// written again.
TEST_F(CheckpointsTest, ARenameThatFailsIsTold) {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  Checkpoints checkpoints(*device_, *reducer_, options());
  const long at = call_of_last_rename(checkpoints);
  EXPECT_GT(at, 1);
  const bool is_last = comm_.rank() + 1 == comm_.size();
  if (is_last) set_file_faults((path_ + "/").c_str(), at, FileFault::once);
  write(checkpoints, 2);
  set_file_faults("", 0, FileFault::none);
  EXPECT_EQ(checkpoints.newest()->step, 1u);
  if (comm_.rank() == 0) {
    EXPECT_EQ(completed_, std::vector<std::uint64_t>{1});
    EXPECT_TRUE(warnings_.starts_with(
        fmt::format("the checkpoint could not be written: rank {} on ", comm_.size() - 1)))
        << warnings_;
    EXPECT_NE(warnings_.find(".ckpt: cannot be created: No space left"), std::string::npos)
        << warnings_;
  }
  write(checkpoints, 2);
  EXPECT_EQ(checkpoints.newest()->step, 2u);
  EXPECT_EQ(files(".ckpt"), 2 * ranks);
  EXPECT_EQ(files(".waiting"), 0u);
}

// With one that is kept, older ones are gone by then on the other ranks: the new one, whose parts
// are all written, stays although a later one cannot be written.
TEST_F(CheckpointsTest, ARenameThatFailsLeavesTheOnlyOne) {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  CheckpointOptions one = options();
  one.keep = 1;
  Checkpoints checkpoints(*device_, *reducer_, one);
  const long at = call_of_last_rename(checkpoints);
  const bool is_last = comm_.rank() + 1 == comm_.size();
  if (is_last) set_file_faults((path_ + "/").c_str(), at, FileFault::once);
  write(checkpoints, 2);
  EXPECT_FALSE(checkpoints.newest());  // so that it is written again
  if (is_last) set_file_faults((path_ + "/").c_str(), 1, FileFault::once);
  write(checkpoints, 3);
  set_file_faults("", 0, FileFault::none);
  EXPECT_FALSE(checkpoints.newest());
  await_all();  // all have removed theirs
  const std::vector<ShardFile> left = list_shards(path_);
  EXPECT_EQ(left.size(), ranks);
  for (const ShardFile& file : left) EXPECT_EQ(file.checkpoint.step, 2u) << name_of(file);
  await_all();  // all have looked
  write(checkpoints, 4);
  EXPECT_EQ(checkpoints.newest()->step, 4u);
  EXPECT_EQ(files(".ckpt"), ranks);
}

// A part that cannot be written: its checkpoint goes, and the same step may be written again. Ranks
// that share the folder leave each other's new files alone.
TEST_F(CheckpointsTest, TheSameStepIsWrittenAgain) {
  const auto ranks = static_cast<std::size_t>(comm_.size());
  Checkpoints checkpoints(*device_, *reducer_, options());
  for (std::uint64_t step = 1; step <= 20; ++step) {
    const bool is_mine = step % ranks == static_cast<std::uint64_t>(comm_.rank());
    if (is_mine) set_file_faults((path_ + "/").c_str(), 1, FileFault::once);
    write(checkpoints, step);
    set_file_faults("", 0, FileFault::none);
    EXPECT_NE(checkpoints.newest().value_or(CheckpointId{}).step, step);
    write(checkpoints, step);
    EXPECT_EQ(checkpoints.newest()->step, step);
    EXPECT_EQ(files(".ckpt"), std::min<std::size_t>(step, 2) * ranks);
    await_all();  // all have looked
  }
}

}  // namespace
}  // namespace dp
