// The trace of a run's steps, as a file for ui.perfetto.dev and chrome://tracing (JSON in the Trace
// Event Format: complete events, microseconds).
//
// A rank is a process of the file, "rank 0, host", with the threads "compute" (the training loop),
// "exchange" (the reducer's thread) and one for each bucket, because several are in flight at once.
// The numbers of processes and threads begin above 0 and all differ: zero is special to viewers,
// and they join threads of the same number. Steps count from 1, as in the log's /steps.
//
// The file is written as FILE.part; close() brings it to the disk and renames it, so FILE is always
// complete. An unfinished FILE.part is removed; only a process that is killed leaves it behind. If
// a FILE.part exists already, the name is FILE-2.part, and so on. Every failure is an Error(data)
// that names the file.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/files/saved_file.hpp"
#include "kernels/base/trace.hpp"

namespace dp {

struct TraceInfo {
  std::vector<std::pair<std::string, std::string>> about = {};  // names and texts for "otherData"
  std::vector<std::string> hosts = {};                          // by rank
  std::vector<std::int64_t> clock_errors_ns = {};               // by rank; see ClockReading
  std::vector<std::uint64_t> left_out = {};                     // by rank: slices without room
  std::vector<std::string> layers = {};                         // by TraceEvent::id
  std::vector<std::size_t> bucket_elements = {};
  bool has_gatherings = false;  // TraceKind::gather
  // Codecs by bucket, each list valid from a step on, because a warm-up changes them. The first is
  // valid from step 0.
  struct Codecs {
    std::uint64_t first_step = 0;
    std::vector<std::string> specs;
  };
  std::vector<Codecs> codecs = {};
};

class TraceFile {
 public:
  // Makes PATH.part, or PATH-2.part, ...
  TraceFile(const std::string& path, TraceInfo info);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Slices of a rank, with times in ns since the trace's zero. Slices of one thread are nested and
  // in the order of their begins, the longer before the shorter.
  void append(std::size_t rank, std::span<const TraceEvent> events);
  // Ends the file. Fails if there is a file at PATH by now.
  void close();

 private:
  void append_header();
  void append_name(const char* what, std::size_t process, std::size_t thread,
                   const std::string& name);
  void append_event(std::size_t rank, const TraceEvent& event);
  [[nodiscard]] const std::string& codec_of(const TraceEvent& event) const;
  void flush();
  // Runs work(); an error of it is told with the file's name.
  template <class Work>
  void attempt(Work work) const;

  std::string path_, part_;
  TraceInfo info_;
  FileDescriptor file_;
  std::uint64_t bytes_ = 0;  // that are written
  bool is_whole_ = false;
  fmt::memory_buffer text_;  // not written yet
};

}  // namespace dp
