// Compares event files with TensorBoard's own bytes, and tests failed saves.
#include "io/files/event_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/base/error.hpp"
#include "tests/io/temp_folder.hpp"

namespace dp {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    for (const int shift : {4, 0}) {
      text += "0123456789abcdef"[(static_cast<unsigned char>(c) >> shift) & 15];
    }
  }
  return text;
}

// The same bytes as TensorBoard's own classes give.
TEST(EventFile, SaysThis) {
  const TempFolder folder;
  EventFile file(folder / "new/run", 1'700'000'000.5);
  file.add_start(300);
  file.add_scalars(300, {{"loss/train", 0.5}, {"unknown", std::nan("")}, {"b", -2.0}});
  file.add_scalars(301, {{"unknown", INFINITY}});
  file.add_text("options", "**a**");
  file.save();
  EXPECT_TRUE(
      std::filesystem::path(file.path()).filename().string().starts_with("events.out.tfevents."));
  EXPECT_EQ(hexadecimal(bytes_of(file.path())),
            "1800000000000000a37f4b220900002040fc54d9411a0d627261696e2e4576656e743a322b353110"
            "100000000000000095fbfe180900002040fc54d94110ac023a020801b94512a32b00000000000000"
            "861bc34b0900002040fc54d94110ac022a1d0a110a0a6c6f73732f747261696e150000003f0a080a"
            "016215000000c0edbf87293e00000000000000d9d240e70900002040fc54d9412a330a310a146f70"
            "74696f6e732f746578745f73756d6d617279420f080712041202080142052a2a612a2a4a080a060a"
            "047465787447f4b449");
}

TEST(EventFile, AFolderIsForOneRun) {
  const TempFolder folder;
  const std::string run = folder / "run";
  EXPECT_EQ(why_no_event_folder(run), "");
  { EventFile(run).save(); }
  EXPECT_NE(why_no_event_folder(run).find("has the events of another run"), std::string::npos);
  // The next start of the run has a file of its own, with a later name.
  const std::string first = std::filesystem::directory_iterator(run)->path();
  EXPECT_GT(EventFile(run).path(), first);
  std::ofstream(folder / "file") << "x";
  EXPECT_EQ(why_no_event_folder(folder / "file"), "is not a folder");
  EXPECT_THROW(EventFile(folder / "file").save(), Error);
}

TEST(EventFile, WhatCannotBeWrittenIsTriedAgain) {
  const TempFolder folder;
  folder.write("taken", {});
  EventFile file(folder / "run", 1'700'000'000.5);
  std::filesystem::rename(folder / "taken", folder / "run");
  EXPECT_THROW(file.save(), Error);  // a file is where the folder is to be
  std::filesystem::remove(folder / "run");
  file.save();
  EXPECT_FALSE(file.is_save_due());
  file.add_scalars(1, {{"a", 1.0}});
  std::filesystem::rename(folder / "run", folder / "away");
  EXPECT_THROW(file.save(), Error);
  file.add_scalars(2, {{"a", 2.0}});
  EXPECT_THROW(file.save(), Error);
  std::filesystem::rename(folder / "away", folder / "run");
  file.save();
  const std::string all = bytes_of(file.path());

  EventFile other(folder / "other", 1'700'000'000.5);
  other.add_scalars(1, {{"a", 1.0}});
  other.add_scalars(2, {{"a", 2.0}});
  other.save();
  EXPECT_EQ(bytes_of(other.path()), all);
  // A file that somebody has shortened is left alone.
  std::filesystem::resize_file(other.path(), 10);
  other.add_scalars(3, {{"a", 3.0}});
  EXPECT_THROW(other.save(), Error);
  EXPECT_EQ(bytes_of(other.path()).size(), 10u);
}

// Files may have 100 bytes: the disk is full in the middle of a record.
TEST(EventFile, LeavesNoHalfOfARecordOnAFullDisk) {
  const TempFolder folder;
  EventFile file(folder / "run", 1'700'000'000.5);
  file.save();
  const std::string before = bytes_of(file.path());
  for (int step = 0; step < 10; ++step) file.add_scalars(step, {{"a", 1.0}});
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small = {.rlim_cur = 100, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(file.save(), Error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(bytes_of(file.path()), before);
  file.save();
  EXPECT_GT(bytes_of(file.path()).size(), 10 * 30u);
}

}  // namespace
}  // namespace dp
