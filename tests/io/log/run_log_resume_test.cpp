// Tests a run log that is continued from a checkpoint's copy.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "io/log/run_log.hpp"
#include "io/log/run_log_image.hpp"
#include "tests/io/log/example_run_log.hpp"
#include "tests/io/log/read_run_log.hpp"
#include "tests/io/temp_folder.hpp"
#include "tests/support/file_faults.hpp"

namespace dp {
namespace {

// Adds an epoch of ten steps with all its rows.
void append_epoch(RunLog& log, std::int64_t epoch) {
  for (std::int64_t step = 1; step <= 10; ++step) {
    log.append(StepRow{.step = 10 * epoch + step, .epoch = epoch});
  }
  log.append(example_epoch(epoch));
  const std::vector<RankRow> ranks = {{.epoch = epoch, .rank = 0, .host = 0, .device = 0},
                                      {.epoch = epoch, .rank = 1, .host = 1, .device = 0}};
  log.append(std::span(ranks));
  log.append(BucketRow{.epoch = epoch, .codec = 1, .topology = 0});
  log.append(TensorRow{.epoch = epoch, .tensor = 7, .longest_wait = 1});
  log.append(ShareRow{.step = 10 * epoch + 7, .images = 5});
  log.save();
}

RunInfo resumed_info(std::int64_t epochs, std::int64_t steps) {
  RunInfo info = example_info();
  info.resumed_from = "checkpoints/step-25";
  info.command_line = "dptrain --resume";
  info.first_epoch = epochs;
  info.first_step = steps;
  info.start_unix_s = 1'700'001'000;
  return info;
}

std::string text_attribute(const std::string& path, const std::string& name) {
  const hid_t file = open_run_log(path);
  const hid_t attribute = H5Aopen(file, name.c_str(), H5P_DEFAULT);
  const hid_t type = H5Aget_type(attribute);
  const hid_t space = H5Aget_space(attribute);
  std::vector<char*> texts(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  EXPECT_GE(H5Aread(attribute, type, texts.data()), 0) << name;
  std::string all;
  for (const char* text : texts) all += (all.empty() ? "" : " ") + std::string(text);
  H5Dvlen_reclaim(type, space, H5P_DEFAULT, texts.data());
  H5Sclose(space);
  H5Tclose(type);
  H5Aclose(attribute);
  H5Fclose(file);
  return all;
}

TEST(RunLogResume, RowsAfterTheCheckpointAreCutAndASessionIsAdded) {
  const TempFolder folder;
  const std::string path = folder / "log.h5";
  std::vector<std::byte> image;
  std::string run_id;
  {
    RunLog log = RunLog::create(path, example_info());
    log.set_attribute("/", "link_bytes_per_s", 1e6);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) append_epoch(log, epoch);
    for (std::int64_t step = 21; step <= 29; ++step) log.append(StepRow{.step = step, .epoch = 2});
    log.append(ShareRow{.step = 28});
    image = log.image();  // also has what is not saved
    append_epoch(log, 2);
    append_epoch(log, 3);
    run_id = text_attribute(path, "run_id");
  }
  EXPECT_EQ(read_table(path, "epochs").rows.size(), 4u);

  // The checkpoint is in the midst of epoch 2, after step 25.
  RunLog log = RunLog::resume(path, image, resumed_info(2, 25));
  log.save();
  EXPECT_EQ(log.path(), path);
  EXPECT_EQ(read_table(path, "epochs").rows.size(), 2u);
  EXPECT_EQ(read_table(path, "ranks").rows.size(), 4u);
  EXPECT_EQ(read_table(path, "buckets").rows.size(), 2u);
  EXPECT_EQ(read_table(path, "tensors").rows.size(), 2u);
  // The shares that apply from step 27 on were decided before the checkpoint.
  EXPECT_EQ(read_table(path, "shares").rows.size(), 2u);
  const ReadTable steps = read_table(path, "steps");
  ASSERT_EQ(steps.rows.size(), 25u);
  EXPECT_EQ(steps.at(24, "step"), 25);
  EXPECT_EQ(
      read_table(path, "sessions").rows,
      (std::vector<std::vector<double>>{{1'700'000'000.25, 0, 0, 2}, {1'700'001'000, 2, 25, 2}}));
  EXPECT_EQ(text_attribute(path, "resumed_from"), "checkpoints/step-25");
  EXPECT_EQ(text_attribute(path, "command_line"), "dptrain --resume");
  EXPECT_EQ(text_attribute(path, "started_at"), "2023-11-14T22:13:20Z");
  EXPECT_EQ(text_attribute(path, "run_id"), run_id);
  EXPECT_EQ(read_numbers(path, "link_bytes_per_s"), std::vector<double>{1e6});
  append_epoch(log, 2);
  append_epoch(log, 3);
  log.close(true);
  const ReadTable epochs = read_table(path, "epochs");
  ASSERT_EQ(epochs.rows.size(), 4u);
  for (std::size_t row = 0; row < 4; ++row) EXPECT_EQ(epochs.at(row, "epoch"), double(row));
  EXPECT_EQ(read_numbers(path, "finished"), std::vector<double>{1});
}

// Earlier versions of dptrain wrote no tables of tensors and of shares.
TEST(RunLogResume, ALogWithoutALaterTableGoesOn) {
  const TempFolder folder;
  const std::string path = folder / "log.h5";
  bool is_first = true;
  for (const bool has_steps : {false, true, true}) {
    RunInfo info = example_info();
    info.has_steps = has_steps;
    std::vector<std::byte> image;
    {
      RunLog log = RunLog::create(path, info);
      log.append(example_epoch(0));
      if (has_steps) log.append(StepRow{.step = 1});
      image = log.image();
    }
    {
      LogContents contents = read_log_image(image, empty_log_tables());
      const auto first = contents.tables.begin() + LogTable::kTensors;
      contents.tables.erase(first, first + (is_first ? 1 : 2));
      is_first = false;
      const LogImage earlier(contents);
      image.assign(earlier.bytes().begin(), earlier.bytes().end());
    }
    info.first_epoch = info.first_step = 1;
    RunLog log = RunLog::resume(path, image, info);
    log.append(TensorRow{.epoch = 1, .tensor = 3});
    log.append(ShareRow{.step = 2});
    if (has_steps) log.append(StepRow{.step = 2});
    log.close(true);
    EXPECT_EQ(read_table(path, "tensors").rows.size(), 1u);
    EXPECT_EQ(read_table(path, "shares").rows.size(), 1u);
    EXPECT_EQ(read_table(path, "epochs").rows.size(), 1u);
    if (has_steps) {
      EXPECT_EQ(read_table(path, "steps").rows.size(), 2u);
    }
    std::filesystem::remove(path);
  }
}

TEST(RunLogResume, AFinishedLogGoesOnAsUnfinished) {
  const TempFolder folder;
  const std::string path = folder / "log.h5";
  RunLog first = RunLog::create(path, example_info());
  append_epoch(first, 0);
  const std::vector<std::byte> image = first.image();
  first.close(true);
  RunLog log = RunLog::resume(path, image, resumed_info(1, 10));
  log.save();
  EXPECT_EQ(read_numbers(path, "finished"), std::vector<double>{0});
  EXPECT_EQ(read_table(path, "epochs").rows.size(), 1u);
}

// Rows of the new session refer to the lists as they are in the file.
TEST(RunLogResume, OtherHostsAndMoreOfThem) {
  const TempFolder folder;
  const std::string path = folder / "log.h5";
  std::vector<std::byte> image;
  {
    RunLog log = RunLog::create(path, example_info());  // hosts alpha and bêta
    append_epoch(log, 0);
    image = log.image();
  }
  RunInfo info = resumed_info(1, 10);
  info.world_size = 3;
  info.hosts = {"alpha", "gamma", "bêta"};
  info.devices = {"gpu", "cpu"};
  info.codec_names = {"q8", "none"};
  RunLog log = RunLog::resume(path, image, info);
  const std::vector<RankRow> ranks = {{.epoch = 1, .rank = 0, .host = 0, .device = 0},
                                      {.epoch = 1, .rank = 1, .host = 1, .device = 1},
                                      {.epoch = 1, .rank = 2, .host = 2, .device = 1}};
  log.append(std::span(ranks));
  log.append(BucketRow{.epoch = 1, .codec = 0});
  log.set_list("codec_names", std::vector<std::string>{"q8", "none", "q4"});
  log.append(BucketRow{.epoch = 1, .codec = 2});
  log.save();
  EXPECT_EQ(text_attribute(path, "hosts"), "alpha bêta gamma");
  EXPECT_EQ(text_attribute(path, "devices"), "cpu gpu");
  EXPECT_EQ(text_attribute(path, "codec_names"), "none q8 q4");
  const ReadTable rows = read_table(path, "ranks"), buckets = read_table(path, "buckets");
  ASSERT_EQ(rows.rows.size(), 5u);
  const double hosts[] = {0, 2, 1}, devices[] = {1, 0, 0};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rows.at(2 + i, "host"), hosts[i]);
    EXPECT_EQ(rows.at(2 + i, "device"), devices[i]);
  }
  EXPECT_EQ(buckets.at(1, "codec"), 1);
  EXPECT_EQ(buckets.at(2, "codec"), 2);
  EXPECT_EQ(read_numbers(path, "world_size"), std::vector<double>{3});
}

TEST(RunLogResume, WhereTheLogGoesOn) {
  const TempFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  RunInfo info = example_info();
  info.config.emplace_back("log", "auto");
  std::vector<std::byte> image;
  std::string first;
  {
    RunLog log = RunLog::create("auto", info);
    append_epoch(log, 0);
    image = log.image();
    first = log.path();
  }
  // The same name, also if the file is gone. Another run's file there gets another name.
  RunInfo next = resumed_info(1, 10);
  next.config.emplace_back("log", "auto");
  EXPECT_EQ(RunLog::resume("auto", image, next).path(), first);
  std::filesystem::remove(first);
  EXPECT_EQ(RunLog::resume(first, image, next).path(), first);
  std::filesystem::remove(first);
  folder.write(first, {1, 2, 3});
  EXPECT_EQ(RunLog::resume("auto", image, next).path(), first);
  EXPECT_EQ(std::filesystem::file_size(std::filesystem::path(first).stem().string() + "-2.h5"), 3u);
  EXPECT_EQ(read_table(first, "epochs").rows.size(), 1u);
  // A new name is free, or an error.
  EXPECT_EQ(RunLog::resume("new.h5", image, next).path(), "new.h5");
  folder.write("taken.h5", {1, 2, 3});
  EXPECT_EQ(failure([&] { const RunLog log = RunLog::resume("taken.h5", image, next); }),
            "log taken.h5: exists already and is not overwritten; give another name or move it "
            "away");
  EXPECT_EQ(std::filesystem::file_size("taken.h5"), 3u);
  // A file that a process left behind when it was killed in a save.
  folder.write(first + ".part", {1, 2, 3});
  EXPECT_EQ(RunLog::resume("auto", image, next).path(), first);
  EXPECT_FALSE(std::filesystem::exists(first + ".part"));
  // A lost log begins anew, and another file at its place is moved away.
  {
    RunLog log = RunLog::resume("taken.h5", {}, next);
    log.save();
    EXPECT_EQ(read_table("taken.h5", "epochs").rows.size(), 0u);
    EXPECT_EQ(std::filesystem::file_size("taken-2.h5"), 3u);
    EXPECT_TRUE(RunLog::resume("auto", {}, next).path().starts_with("dptrain-"));
  }
  const std::vector<std::byte> damaged(image.begin(), image.begin() + 1'000);
  EXPECT_EQ(failure([&] { const RunLog log = RunLog::resume("d.h5", damaged, next); }),
            "log d.h5: the checkpoint's copy of it is damaged");
  std::filesystem::current_path(before);
}

// A disk that fails when the run goes on ends nothing: the log waits for it in memory.
TEST(RunLogResume, WhatCannotBeWrittenIsTriedAgain) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "logs");
  const std::string path = folder / "logs/log.h5";
  std::vector<std::byte> image;
  {
    RunLog first = RunLog::create(path, example_info());
    append_epoch(first, 0);
    image = first.image();
  }
  {  // the folder is gone
    std::filesystem::rename(folder / "logs", folder / "away");
    RunLog log = RunLog::resume(path, image, resumed_info(1, 10));
    EXPECT_EQ(failure([&] { log.save(); }),
              "log " + path + ": cannot be written: No such file or directory");
    std::filesystem::create_directory(folder / "logs");
    append_epoch(log, 1);
    EXPECT_EQ(read_table(path, "epochs").rows.size(), 2u);
  }
  // The disk is full, and the log's file is there.
  std::filesystem::remove_all(folder / "logs");
  std::filesystem::rename(folder / "away", folder / "logs");
  RunLog log = RunLog::resume(path, image, resumed_info(1, 10));
  set_file_faults((folder / "").c_str(), 1, FileFault::full);
  EXPECT_EQ(failure([&] { log.save(); }),
            "log " + path + ": cannot be written: No space left on device");
  set_file_faults("", 0, FileFault::none);
  EXPECT_EQ(read_table(path, "epochs").rows.size(), 1u);
  append_epoch(log, 1);
  EXPECT_EQ(read_table(path, "epochs").rows.size(), 2u);
  EXPECT_EQ(read_table(path, "sessions").rows.size(), 2u);
}

}  // namespace
}  // namespace dp
