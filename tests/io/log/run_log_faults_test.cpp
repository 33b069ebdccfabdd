// Tests kills, full disks and vanishing folders at every point of a run log's life. After each, the
// file has every row of the last save that returned.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/log/run_log.hpp"
#include "tests/io/log/example_run_log.hpp"
#include "tests/io/log/read_run_log.hpp"
#include "tests/io/temp_folder.hpp"
#include "tests/support/file_faults.hpp"

namespace dp {
namespace {

constexpr std::int64_t kEpochs = 3, kStepsPerEpoch = 600;

// The writer's result of each save: '+' if it returned, '-' if it threw.
class Saves {
 public:
  Saves() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Saves() {
    ::close(ends_[0]);
    if (ends_[1] >= 0) ::close(ends_[1]);
  }
  void note(bool is_done) const { static_cast<void>(!::write(ends_[1], is_done ? "+" : "-", 1)); }
  [[nodiscard]] std::string all() {
    ::close(ends_[1]);
    ends_[1] = -1;
    std::string text;
    char one = 0;
    while (::read(ends_[0], &one, 1) == 1) text += one;
    return text;
  }

 private:
  int ends_[2] = {-1, -1};
};

// A whole run: steps are saved between epochs, too, and the table of steps gets a second chunk. The
// saves are create, one after each half of an epoch, and close.
void write_log(const std::string& path, const Saves& saves) {
  const auto attempt = [&](auto work) {
    try {
      work();
      saves.note(true);
    } catch (const Error&) {
      saves.note(false);
    }
  };
  std::optional<RunLog> log;
  attempt([&] { log.emplace(RunLog::create(path, example_info())); });
  if (!log) return;
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (int half = 0; half < 2; ++half) {
      for (std::int64_t i = 0; i < kStepsPerEpoch / 2; ++i) {
        log->append(StepRow{.step = ++step, .epoch = epoch, .train_loss = 0.5 * double(step)});
      }
      if (half == 1) {
        log->append(example_epoch(epoch));
        const std::vector<RankRow> ranks = {{.epoch = epoch, .rank = 0},
                                            {.epoch = epoch, .rank = 1}};
        log->append(std::span(ranks));
        log->append(BucketRow{.epoch = epoch, .bucket = 0, .elements = 7});
      }
      attempt([&] { log->save(); });
    }
  }
  attempt([&] { log->close(true); });
}

struct Outcome {
  int status = 0;     // of the writer, as of waitpid()
  std::string saves;  // as Saves
};

Outcome write_with_fault(const TempFolder& folder, long at, FileFault fault,
                         const std::string& list = "") {
  Saves saves;
  const pid_t writer = ::fork();
  if (writer == 0) {
    set_file_faults((folder / "").c_str(), at, fault, list.c_str());
    write_log(folder / "log.h5", saves);
    ::_exit(0);
  }
  Outcome outcome;
  outcome.saves = saves.all();
  EXPECT_EQ(::waitpid(writer, &outcome.status, 0), writer);
  return outcome;
}

// The file has what the saves that returned have put there, and nothing that was never appended.
void expect_rows_of(const std::string& path, const std::string& saves) {
  const auto halves = static_cast<std::int64_t>(saves.find_last_of('+'));
  const ReadTable epochs = read_table(path, "epochs"), ranks = read_table(path, "ranks");
  const ReadTable buckets = read_table(path, "buckets"), steps = read_table(path, "steps");
  const auto whole = std::min(halves, 2 * kEpochs);
  EXPECT_GE(std::ssize(epochs.rows), whole / 2);
  EXPECT_GE(std::ssize(ranks.rows), 2 * (whole / 2));
  EXPECT_GE(std::ssize(buckets.rows), whole / 2);
  EXPECT_GE(std::ssize(steps.rows), whole * (kStepsPerEpoch / 2));
  EXPECT_LE(std::ssize(epochs.rows), kEpochs);
  // An epoch has its rows in the other tables.
  EXPECT_GE(ranks.rows.size(), 2 * epochs.rows.size());
  EXPECT_GE(buckets.rows.size(), epochs.rows.size());
  EXPECT_GE(std::ssize(steps.rows), std::ssize(epochs.rows) * kStepsPerEpoch);
  for (std::size_t row = 0; row < epochs.rows.size(); ++row) {
    EXPECT_EQ(epochs.at(row, "epoch"), double(row));
    EXPECT_EQ(epochs.at(row, "residual_norm"), 1'000.0 * double(row) + 3);
    EXPECT_EQ(epochs.at(row, "control_bytes"), 9);
  }
  for (std::size_t row = 0; row < ranks.rows.size(); ++row) {
    EXPECT_EQ(ranks.at(row, "epoch"), double(row / 2));
    EXPECT_EQ(ranks.at(row, "rank"), double(row % 2));
  }
  for (std::size_t row = 0; row < buckets.rows.size(); ++row) {
    EXPECT_EQ(buckets.at(row, "elements"), 7);
  }
  bool are_steps_whole = true;
  for (std::size_t row = 0; row < steps.rows.size(); ++row) {
    are_steps_whole &=
        steps.rows[row][0] == double(row + 1) && steps.rows[row][2] == 0.5 * double(row + 1);
  }
  EXPECT_TRUE(are_steps_whole);
  EXPECT_EQ(read_table(path, "sessions").rows.size(), 1u);
  const bool is_closed = saves.size() == std::size_t{2 * kEpochs + 2} && saves.back() == '+';
  if (is_closed) {
    EXPECT_EQ(read_numbers(path, "finished"), std::vector<double>{1});
  }
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(RunLogFaults, EveryWriteSyncAndRenameMayBeTheLast) {
  const TempFolder::InMemory in_memory;
  const TempFolder counted(in_memory), list(in_memory);
  const Outcome whole = write_with_fault(counted, 0, FileFault::none, list / "calls");
  ASSERT_EQ(whole.saves, "++++++++");
  const auto calls = std::ssize(lines_of(list / "calls"));
  EXPECT_GT(calls, 40);
  for (const auto& [name, fault] : kFileFaults) {
    for (long at = 1; at <= calls; ++at) {
      SCOPED_TRACE(std::string(name) + " at call " + std::to_string(at));
      const TempFolder folder(in_memory);
      const Outcome outcome = write_with_fault(folder, at, fault);
      const bool is_kill = fault == FileFault::kill_before || fault == FileFault::kill_after ||
                           fault == FileFault::kill_within;
      EXPECT_EQ(WIFSIGNALED(outcome.status), is_kill);
      const std::string path = folder / "log.h5";
      if (outcome.saves.find('+') == std::string::npos) {
        // It was never made. A process that lives leaves nothing behind.
        EXPECT_TRUE(is_kill || std::filesystem::is_empty(folder.path()));
        continue;
      }
      expect_rows_of(path, outcome.saves);
      // A disk that is full once takes all rows later.
      if (fault == FileFault::once) {
        EXPECT_LE(std::ranges::count(outcome.saves, '-'), 1) << outcome.saves;
        if (outcome.saves.back() == '+') {
          EXPECT_EQ(std::ssize(read_table(path, "epochs").rows), kEpochs);
        }
      }
      if (!is_kill) {
        const std::filesystem::directory_iterator files(folder.path());
        EXPECT_EQ(std::distance(begin(files), end(files)), 1);
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
}

// A loss of power can undo everything that no sync has put on the disk. A file must therefore be
// synced after its last write, before it gets the log's name or its rows become visible; the folder
// must be synced after the rename.
TEST(RunLogFaults, NamesAndLengthsFollowWhatTheyStandFor) {
  const TempFolder folder, list;
  ASSERT_EQ(write_with_fault(folder, 0, FileFault::none, list / "calls").saves, "++++++++");
  std::map<std::string, bool> is_synced;
  int renames = 0, saves_in_place = 0;
  std::string before;
  for (const std::string& line : lines_of(list / "calls")) {
    const std::string call = line.substr(line.find(' ') + 1, line.rfind(' ') - line.find(' ') - 1);
    const std::string path = line.substr(line.rfind(' ') + 1);
    if (before == "rename") {
      EXPECT_EQ(line.substr(line.find(' ')), " fsync " + folder.path().string());
    }
    if (call == "pwrite") is_synced[path] = false;
    if (call == "fdatasync" || call == "fsync") {
      saves_in_place += path == folder / "log.h5" && !is_synced[path] ? 1 : 0;
      is_synced[path] = true;
    }
    if (call == "rename") {
      ++renames;
      EXPECT_TRUE(is_synced[folder / "log.h5.part"]);
    }
    if (call != "close") before = call;
  }
  EXPECT_GE(renames, 4);         // create, the first rows, a new chunk, close
  EXPECT_GE(saves_in_place, 4);  // two each
  EXPECT_NE(before, "rename");
}

TEST(RunLogFaults, AFolderThatVanishesAndComesBack) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "logs");
  const std::string path = folder / "logs/log.h5";
  RunLog log = RunLog::create(path, example_info());
  log.append(example_epoch(0));
  log.save();
  std::filesystem::remove_all(folder / "logs");
  log.append(example_epoch(1));
  EXPECT_EQ(failure([&] { log.save(); }),
            "log " + path + ": cannot be written: No such file or directory");
  EXPECT_FALSE(std::filesystem::exists(folder / "logs"));
  std::filesystem::create_directory(folder / "logs");
  log.append(example_epoch(2));
  log.save();
  EXPECT_EQ(read_table(path, "epochs").rows.size(), 3u);
  EXPECT_EQ(read_numbers(path, "finished"), std::vector<double>{0});
}

TEST(RunLogFaults, AFileOfTheSameNameIsLeftAlone) {
  const TempFolder folder;
  const std::string path = folder / "log.h5";
  RunLog log = RunLog::create(path, example_info());
  std::filesystem::rename(path, folder / "moved.h5");
  folder.write("log.h5", {1, 2, 3});
  log.append(example_epoch(0));
  EXPECT_EQ(failure([&] { log.save(); }),
            "log " + path + ": cannot be written: another file has this name by now");
  EXPECT_EQ(std::filesystem::file_size(path), 3u);
  EXPECT_EQ(read_table(folder / "moved.h5", "epochs").rows.size(), 0u);
  // When the name is free again, the log takes it.
  std::filesystem::remove(path);
  log.save();
  EXPECT_EQ(read_table(path, "epochs").rows.size(), 1u);
}

TEST(RunLogFaults, WhatIsOpenStaysWhole) {
  const TempFolder folder;
  const std::string path = folder / "log.h5";
  RunLog log = RunLog::create(path, example_info());
  log.append(example_epoch(0));
  log.save();
  const hid_t reader = open_run_log(path);
  log.set_attribute("/", "note", std::string("a new file"));
  log.save();
  const hid_t table = H5Dopen2(reader, "epochs", H5P_DEFAULT);
  EXPECT_GE(table, 0);
  const hid_t space = H5Dget_space(table);
  EXPECT_EQ(H5Sget_simple_extent_npoints(space), 1);
  H5Sclose(space);
  H5Dclose(table);
  H5Fclose(reader);
}

}  // namespace
}  // namespace dp
