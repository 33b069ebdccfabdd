// Tests a trace's exact text, and that the file exists only when it is whole and on the disk.
#include "io/files/trace_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/base/error.hpp"
#include "tests/io/temp_folder.hpp"
#include "tests/support/file_faults.hpp"

namespace dp {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TraceInfo two_ranks() {
  return {.about = {{"program", "dptrain 1"}, {"model", "a \"b\" \\\n"}},
          .hosts = {"east", "west"},
          .clock_errors_ns = {0, 1'250},
          .left_out = {0, 3},
          .layers = {"images", "conv1"},
          .bucket_elements = {100},
          .codecs = {{0, {"none"}}, {7, {"q8:block=2048,ef=on"}}}};
}

TEST(TraceFile, SaysThis) {
  const TempFolder folder;
  const std::string path = folder / "t.json";
  TraceFile file(path, two_ranks());
  const std::vector<TraceEvent> first = {
      {.begin_ns = 1'000, .end_ns = 900'005, .step = 6, .kind = TraceKind::step},
      {.begin_ns = 2'000, .end_ns = 3'500, .step = 6, .id = 1, .kind = TraceKind::layer_forward}};
  const std::vector<TraceEvent> second = {
      {.begin_ns = 5'000'000'000'001,
       .end_ns = 5'000'000'000'002,
       .bytes = 52,
       .step = 7,
       .id = 0,
       .segment = 4,
       .kind = TraceKind::encode,
       .is_total = true},
      {.begin_ns = 1, .end_ns = 2, .step = 6, .id = 0, .kind = TraceKind::wire_wait},
      {.begin_ns = 1, .end_ns = 2, .bytes = 400, .step = 6, .id = 0, .kind = TraceKind::bucket},
      {.begin_ns = 1, .end_ns = 2, .bytes = 100, .step = 7, .id = 0, .kind = TraceKind::bucket},
      {.begin_ns = 1, .end_ns = 2, .step = 7, .segment = 2, .kind = TraceKind::q_factor}};
  file.append(0, first);
  file.append(1, second);
  file.close();
  EXPECT_EQ(text_of(path), R"~({"displayTimeUnit":"ms",
"otherData":{"program":"dptrain 1","model":"a \"b\" \\\u000a","ranks":2,"clock":"rank 0's clock; other hosts' clocks were compared with it by round trips to it","clock_error_us":[0.000,1.250],"slices_left_out":[0,3]},
"traceEvents":[
{"ph":"M","pid":10000,"tid":10000,"name":"process_name","args":{"name":"rank 0, east"}},
{"ph":"M","pid":10000,"tid":10000,"name":"process_sort_index","args":{"sort_index":10000}},
{"ph":"M","pid":10000,"tid":10000,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":10000,"tid":10000,"name":"thread_sort_index","args":{"sort_index":10000}},
{"ph":"M","pid":10000,"tid":10001,"name":"thread_name","args":{"name":"exchange"}},
{"ph":"M","pid":10000,"tid":10001,"name":"thread_sort_index","args":{"sort_index":10001}},
{"ph":"M","pid":10000,"tid":10002,"name":"thread_name","args":{"name":"bucket 0"}},
{"ph":"M","pid":10000,"tid":10002,"name":"thread_sort_index","args":{"sort_index":10002}},
{"ph":"M","pid":20000,"tid":20000,"name":"process_name","args":{"name":"rank 1, west"}},
{"ph":"M","pid":20000,"tid":20000,"name":"process_sort_index","args":{"sort_index":20000}},
{"ph":"M","pid":20000,"tid":20000,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":20000,"tid":20000,"name":"thread_sort_index","args":{"sort_index":20000}},
{"ph":"M","pid":20000,"tid":20001,"name":"thread_name","args":{"name":"exchange"}},
{"ph":"M","pid":20000,"tid":20001,"name":"thread_sort_index","args":{"sort_index":20001}},
{"ph":"M","pid":20000,"tid":20002,"name":"thread_name","args":{"name":"bucket 0"}},
{"ph":"M","pid":20000,"tid":20002,"name":"thread_sort_index","args":{"sort_index":20002}},
{"ph":"X","name":"step 7","cat":"step","pid":10000,"tid":10000,"ts":1.000,"dur":899.005,"args":{"step":7}},
{"ph":"X","name":"conv1","cat":"forward","pid":10000,"tid":10000,"ts":2.000,"dur":1.500,"args":{"step":7}},
{"ph":"X","name":"encode","cat":"encode","pid":20000,"tid":20001,"ts":5000000000.001,"dur":0.001,"args":{"step":8,"bucket":0,"segment":4,"sum":"total","bytes":52}},
{"ph":"X","name":"wait: wire","cat":"wait","pid":20000,"tid":20001,"ts":0.001,"dur":0.001,"args":{"step":7,"bucket":0}},
{"ph":"X","name":"bucket 0, none","cat":"bucket","pid":20000,"tid":20002,"ts":0.001,"dur":0.001,"args":{"step":7,"bucket":0,"codec":"none","elements":100,"sent_bytes":400}},
{"ph":"X","name":"bucket 0, q8","cat":"bucket","pid":20000,"tid":20002,"ts":0.001,"dur":0.001,"args":{"step":8,"bucket":0,"codec":"q8:block=2048,ef=on","elements":100,"sent_bytes":100}},
{"ph":"X","name":"Q = M^T P","cat":"encode","pid":20000,"tid":20001,"ts":0.001,"dur":0.001,"args":{"step":8,"bucket":0,"tensor":2}}
]}
)~");
}

TEST(TraceFile, IsThereOnlyWhenItIsWhole) {
  const TempFolder folder;
  const std::string path = folder / "t.json";
  {
    TraceFile file(path, two_ranks());
    const std::vector<TraceEvent> many(10'000);
    file.append(0, many);
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_TRUE(std::filesystem::exists(path + ".part"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));  // an unfinished trace leaves nothing
  // A file of that name may be a log, or left behind by a killed process.
  std::ofstream(path + ".part") << "somebody's";
  {
    TraceFile file(path, {});
    file.close();
  }
  EXPECT_EQ(text_of(path + ".part"), "somebody's");
  EXPECT_FALSE(std::filesystem::exists(path + "-2.part"));
  const std::string whole = text_of(path);
  EXPECT_TRUE(whole.ends_with("]}\n")) << whole;
  // A file that was made at that name since the start is not overwritten.
  {
    TraceFile late(path, {});
    EXPECT_THROW(late.close(), Error);
  }
  EXPECT_EQ(text_of(path), whole);
}

TEST(TraceFile, IsOnTheDiskBeforeItHasItsName) {
  const TempFolder folder, lists;
  set_file_faults((folder / "").c_str(), 0, FileFault::none, (lists / "calls").c_str());
  {
    TraceFile file(folder / "t.json", two_ranks());
    file.close();
  }
  set_file_faults("", 0, FileFault::none);
  const std::string calls = text_of(lists / "calls");
  const auto synced = calls.find(" fsync "), renamed = calls.find(" rename ");
  EXPECT_LT(synced, renamed) << calls;
  EXPECT_NE(calls.find(" fsync ", renamed), std::string::npos) << calls;  // of the folder
}

TEST(TraceFile, SaysWhyItCannotBe) {
  const TempFolder folder;
  const auto message_of = [](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string lost = folder / "none/t.json";
  EXPECT_EQ(message_of([&] { TraceFile(lost, {}); }),
            "trace " + lost + ".part: cannot be created: No such file or directory");
  // A limit on the size of files acts like a full disk.
  const std::string full = folder / "full";
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{100, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = message_of([&] {
    TraceFile file(full, {});
    file.close();
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(message, "trace " + full + ".part: cannot be written: File too large");
  EXPECT_FALSE(std::filesystem::exists(full + ".part"));
  EXPECT_FALSE(std::filesystem::exists(full));
}

}  // namespace
}  // namespace dp
