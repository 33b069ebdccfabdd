// Tests the file of a checkpoint: its exact bytes, that every cut and every damaged byte is refused
// in one sentence, and the names and the cleaning of a folder.
#include "io/files/checkpoint_file.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "io/files/checkpoint_folder.hpp"
#include "io/files/trial.hpp"
#include "io/files/whole_file.hpp"
#include "kernels/base/error.hpp"
#include "tests/io/temp_folder.hpp"

namespace dp {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::vector<std::byte> small_shard() {
  ShardImage image;
  image.lay_out({{"head", 0x200, 3}, {"empty", 1, 0}, {"values", 4, 5}});
  std::ranges::copy(bytes_of("abc"), image.bytes_of(0).begin());
  std::ranges::copy(bytes_of("12345"), image.bytes_of(2).begin());
  const auto file = image.seal();
  return {file.begin(), file.end()};
}

std::string message_of(std::vector<std::byte> file) {
  try {
    const Shard shard(std::move(file), "a.ckpt");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  return {};
}

TEST(Shard, HasTheBytesThatItsHeaderDescribes) {
  std::string table;
  const auto number = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (const auto& [name, type, contents] :
       {std::tuple{"head", 0x200u, "abc"}, {"empty", 1u, ""}, {"values", 4u, "12345"}}) {
    table += number(std::uint64_t{std::strlen(contents)}) +
             number(std::uint64_t{XXH3_64bits(contents, std::strlen(contents))}) + number(type) +
             number(static_cast<std::uint32_t>(std::strlen(name))) + name;
  }
  const std::string head = "dpckpt1\n" + number(std::uint64_t{40 + table.size() + 8}) +
                           number(std::uint64_t{table.size()}) + number(std::uint64_t{3});
  const std::uint64_t hash =
      XXH3_64bits_withSeed(table.data(), table.size(), XXH3_64bits(head.data(), head.size()));
  EXPECT_EQ(small_shard(), bytes_of(head + number(hash) + table + "abc12345"));
}

TEST(Shard, ReadsWhatWasWritten) {
  const TempFolder folder;
  const std::vector<std::byte> file = small_shard();
  write_whole_file(folder / "a", folder / "a.part", file);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.part"));
  const Shard shard = Shard::read(folder / "a");
  ASSERT_EQ(shard.entries().size(), 3u);
  EXPECT_EQ(shard.entries()[2].name, "values");
  EXPECT_EQ(shard.entries()[2].type, 4u);
  EXPECT_EQ(shard.text("head"), "abc");
  EXPECT_EQ(shard.text("empty"), "");
  EXPECT_EQ(shard.text("values"), "12345");
  EXPECT_FALSE(shard.find("other"));
  EXPECT_TRUE(std::ranges::equal(shard.file(), file));
}

TEST(Shard, AnImageIsUsedAgainForOtherSizes) {
  ShardImage image;
  image.lay_out({{"long", 0, 1000}});
  std::ranges::fill(image.bytes_of(0), std::byte{7});
  static_cast<void>(image.seal());
  image.lay_out({{"short", 0, 1}});
  image.bytes_of(0)[0] = std::byte{'x'};
  const auto file = image.seal();
  EXPECT_EQ(Shard({file.begin(), file.end()}, "x").text("short"), "x");
}

TEST(Shard, IsRefusedWhereverItIsCutOff) {
  const std::vector<std::byte> whole = small_shard();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string message =
        message_of({whole.begin(), whole.begin() + static_cast<long>(size)});
    EXPECT_EQ(message.find("a.ckpt: is cut off: "), 0u) << size << ": " << message;
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_EQ(message_of(longer).find("a.ckpt: is damaged"), 0u);
}

TEST(Shard, IsRefusedWhicheverByteIsDamaged) {
  const std::vector<std::byte> whole = small_shard();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const std::byte flip : {std::byte{1}, std::byte{0x80}, std::byte{0xff}}) {
      std::vector<std::byte> damaged = whole;
      damaged[at] ^= flip;
      EXPECT_EQ(message_of(damaged).find("a.ckpt: is "), 0u) << at;
    }
  }
}

TEST(WholeFile, LeavesTheOldFileWhereTheNewOneCannotBeWritten) {
  const TempFolder folder;
  write_whole_file(folder / "a", folder / "a.part", bytes_of("old"));
  std::string message;
  try {
    // A folder has the name that is wanted meanwhile.
    std::filesystem::create_directories(folder / "b.part");
    write_whole_file(folder / "a", folder / "b.part", bytes_of("new"));
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("b.part: cannot be created: Is a directory"), std::string::npos)
      << message;
  EXPECT_EQ(read_whole_file(folder / "a"), bytes_of("old"));
}

TEST(WholeFile, IsNotWrittenThroughAPlantedLink) {
  const TempFolder folder;
  write_whole_file(folder / "victim", folder / "victim.part", bytes_of("precious"));
  std::filesystem::create_symlink(folder / "victim", folder / "a.part");
  write_whole_file(folder / "a", folder / "a.part", bytes_of("new"));
  std::filesystem::create_hard_link(folder / "victim", folder / "b.part");
  write_whole_file(folder / "b", folder / "b.part", bytes_of("new"));
  EXPECT_EQ(read_whole_file(folder / "victim"), bytes_of("precious"));
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / "a")));
  EXPECT_EQ(read_whole_file(folder / "b"), bytes_of("new"));
}

TEST(ShardName, ReadsBack) {
  const ShardFile file = {.checkpoint = {.step = 120, .attempt = 0x1f3a9c2e, .ranks = 8},
                          .rank = 3,
                          .is_complete = true};
  EXPECT_EQ(name_of(file), "step000000120.rank3of8.1f3a9c2e.ckpt");
  EXPECT_EQ(parse_shard_name(name_of(file)), file);
  ShardFile waiting = file;
  waiting.is_complete = false;
  EXPECT_EQ(name_of(waiting), "step000000120.rank3of8.1f3a9c2e.waiting");
  EXPECT_EQ(parse_shard_name(name_of(waiting)), waiting);
  for (const std::string& other :
       {part_name_of(file), log_name_of(file.checkpoint), std::string("step12.rank3of8.1.ckpt"),
        std::string("step000000120.rank8of8.1f3a9c2e.ckpt"), std::string("notes.txt"),
        std::string("step000000120.rank0of65537.1f3a9c2e.ckpt"),
        std::string("step000000120.rank0of4294967295.1f3a9c2e.ckpt"),
        std::string("step000000120.rank3of8.1f3a9c2e.ckpt2"), std::string()}) {
    EXPECT_FALSE(parse_shard_name(other)) << other;
  }
}

TEST(CheckpointFolder, KeepsWhatItMust) {
  const TempFolder folder;
  const auto id = [](std::uint64_t step, std::uint32_t attempt) {
    return CheckpointId{.step = step, .attempt = attempt, .ranks = 2};
  };
  const auto shard = [](const CheckpointId& of, bool is_complete) {
    return ShardFile{.checkpoint = of, .rank = 1, .is_complete = is_complete};
  };
  const std::vector<std::string> kept = {name_of(shard(id(20, 2), true)), log_name_of(id(20, 2)),
                                         name_of(shard(id(10, 1), true)), "notes.txt"};
  const std::vector<std::string> removed = {name_of(shard(id(5, 1), true)),
                                            log_name_of(id(5, 1)),
                                            log_name_of(id(15, 2)),
                                            name_of(shard(id(20, 1), false)),
                                            name_of(shard(id(30, 2), false)),
                                            part_name_of(shard(id(20, 2), false)),
                                            part_name_of(shard(id(30, 1), false)),
                                            log_name_of(id(30, 1)) + ".part"};
  for (const auto* names : {&kept, &removed}) {
    for (const std::string& name : *names) folder.write(name, {1});
  }
  EXPECT_EQ(list_shards(folder.path().string()).size(), 5u);
  const std::vector<CheckpointId> kept_ids = {id(10, 1), id(20, 2)};
  remove_checkpoints(folder.path().string(), kept_ids);
  for (const std::string& name : kept) EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  for (const std::string& name : removed) {
    EXPECT_FALSE(std::filesystem::exists(folder / name)) << name;
  }
  EXPECT_TRUE(list_shards(folder / "nothing").empty());
}

TEST(CheckpointLock, KeepsOtherRunsAwayUntilItsProcessEnds) {
  const TempFolder folder;
  const std::string path = folder.path().string();
  const auto message = [&](std::uint32_t attempt) {
    try {
      const CheckpointLock lock(path, attempt, std::chrono::milliseconds(10));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return std::string(error.what());
    }
    return std::string();
  };
  int ready[2] = {};
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t other = ::fork();
  if (other == 0) {  // a rank of another run
    const CheckpointLock lock(path, 7, std::chrono::seconds(1));
    // As the writing of a checkpoint does.
    sync_folder_of(path + "/file");
    static_cast<void>(!::write(ready[1], "x", 1));
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  for (const std::uint32_t attempt : {0u, 6u, 8u, 0xffffffffu}) {
    EXPECT_NE(message(attempt).find("is in use by another run on this host"), std::string::npos)
        << attempt;
  }
  EXPECT_EQ(message(7), "");  // a rank of the same one
  ::kill(other, SIGKILL);
  ASSERT_EQ(::waitpid(other, nullptr, 0), other);
  EXPECT_EQ(message(8), "");
  EXPECT_TRUE(std::filesystem::is_empty(path));
  for (const int end : ready) ::close(end);
}

// A library that crashes on a damaged file, or does not come back, does it in another process.
TEST(Trial, EndsInAnErrorAtMost) {
  const auto message = [](const std::function<void()>& read) {
    try {
      try_in_child("/dev/null", read);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message([] {}), "");
  EXPECT_EQ(message([] { throw Error(ErrorKind::data, "damaged"); }), "");
  EXPECT_EQ(message([] { std::raise(SIGSEGV); }), "HDF5: reading crashed");
  EXPECT_EQ(message([] {
              for (volatile int round = 0;;) round = round ^ 1;
            }),
            "HDF5: reading took too long");
}

}  // namespace
}  // namespace dp
