// dptrun's parts: marks in output, lists of hosts, mpirun's command line.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <vector>

#include "app/dptrun/dptrun_hosts.hpp"
#include "app/dptrun/dptrun_marks.hpp"
#include "app/dptrun/dptrun_options.hpp"
#include "app/process/run_status.hpp"
#include "kernels/base/error.hpp"
#include "tests/io/temp_folder.hpp"

namespace dp {
namespace {

std::string mark(const std::string& words) {
  return fmt::format("{}dptrun {} {}{}", kStatusBegin, words, mark_checksum(words), kStatusEnd);
}

TEST(Dptrun, MarksAreTakenOutWhereverTheOutputIsCut) {
  const std::string text = "epoch 1\n" + mark("step 7") + "no mark: \x1e[1m, \x1e" + mark("end 4") +
                           ", \x1e"
                           "dptrun " +
                           std::string(600, 'x') +
                           "\x1f\x1e"
                           "dptr";
  const std::string want =
      "epoch 1\nno mark: \x1e[1m, \x1e, \x1e"
      "dptrun " +
      std::string(600, 'x') +
      "\x1f\x1e"
      "dptr";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    std::vector<std::string> marks;
    MarkFilter filter([&](std::string_view words) { marks.emplace_back(words); });
    std::string out;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      out += filter.pass(std::string_view(text).substr(at, piece));
    }
    EXPECT_EQ(out + filter.rest(), want) << piece;
    EXPECT_EQ(marks, (std::vector<std::string>{"step 7", "end 4"})) << piece;
  }
}

// "end 4" would start the run again, "end 5" would not.
TEST(Dptrun, NobodyObeysADamagedMark) {
  const std::string whole = mark("end 4");
  EXPECT_EQ(whole,
            "\x1e"
            "dptrun end 4 cf50a053\x1f");
  std::vector<std::string> marks;
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    MarkFilter filter([&](std::string_view words) { marks.emplace_back(words); });
    static_cast<void>(filter.pass(damaged + "\n" + whole));
    static_cast<void>(filter.rest());
  }
  EXPECT_EQ(marks, std::vector<std::string>(8 * whole.size(), "end 4"));
  MarkFilter filter([&](std::string_view words) { marks.emplace_back(words); });
  marks.clear();
  EXPECT_EQ(filter.pass("a\x1e"
                        "dptrun end 4\x1f"
                        "b\x1e"
                        "dptrun \x1f"
                        "c"),
            "abc");
  EXPECT_TRUE(marks.empty());
}

TEST(Dptrun, HostsAreReadFromTheLineAndTheFile) {
  const std::vector<RunHost> want = {{"a", 2}, {"b", 1}, {"10.0.0.1", 4}};
  EXPECT_EQ(parse_hosts("a:2,b,10.0.0.1:4"), want);
  EXPECT_EQ(parse_hosts(to_text(want)), want);
  const TempFolder folder;
  const std::string path = folder / "hosts";
  std::ofstream(path) << "# mine\n\na slots=2\n  b\n10.0.0.1 slots=4 max_slots=8  # fast\n";
  EXPECT_EQ(read_hostfile(path), want);
  for (const char* bad :
       {"a slots=0\n", "a slots=x\n", "a gpus=2\n", "a\na\n", "# none\n", "-x\n"}) {
    std::ofstream(path) << bad;
    EXPECT_THROW(static_cast<void>(read_hostfile(path)), Error) << bad;
  }
  // Devices and files without an end, folders, and what is not there.
  const std::string long_path = folder / "long";
  std::ofstream(long_path) << std::string(5 << 20, 'a');
  for (const std::string& bad :
       {std::string("/dev/zero"), long_path, std::string("/"), folder / "no"}) {
    EXPECT_THROW(static_cast<void>(read_hostfile(bad)), Error) << bad;
  }
  for (const char* bad : {"", ":2", "a:", "a:0", "a,,b", "a,a", "-o:1"}) {
    EXPECT_THROW(static_cast<void>(parse_hosts(bad)), Error) << bad;
  }
}

TEST(Dptrun, ARestartGoesOnWithTheHostsThatAreThere) {
  const DptrunOptions options = parse_dptrun({"--host", "a:2,b:2", "-np", "3", "--mpirun=--mca x y",
                                              "--", "/bin/true", "--checkpoint", "d"});
  EXPECT_EQ(ranks_on(options, options.hosts), 3);
  EXPECT_EQ(ranks_on(options, {{"b", 2}}), 2);
  const std::vector<std::string> words = mpirun_words(options, {{"b", 2}}, true);
  const auto has = [&](std::vector<std::string> part) {
    return std::search(words.begin(), words.end(), part.begin(), part.end()) != words.end();
  };
  EXPECT_TRUE(has({"-np", "2", "--host", "b:2"}));
  EXPECT_TRUE(has({"--mca", "x", "y", "/bin/true", "--checkpoint", "d", "--resume"}));
  // As long as there is no checkpoint, the batch is that of all ranks.
  EXPECT_TRUE(has({"--resume", "--planned-ranks", "3"}));
  EXPECT_EQ(mpirun_words(options, {{"b", 2}}, false).back(), "3");
  EXPECT_EQ(mpirun_words(options, options.hosts, false).back(), "d");
  EXPECT_EQ(silence_of(options), 120);
}

}  // namespace
}  // namespace dp
