// The trace of a run's steps, as a file for ui.perfetto.dev and chrome://tracing (JSON in the Trace
// Event Format: complete events, microseconds).
//
// The file shows each rank as a process with a name such as "rank 0, host". The process has a
// thread "compute" (the training loop) and a thread "exchange" (the reducer's thread). It also has
// one thread for each bucket, because several buckets are in flight at once. Process and thread
// identifiers are never 0, because viewers treat 0 specially. No two threads have the same
// identifier, even in different processes, because viewers would merge the threads. Steps are
// counted from 1, as in the log's /steps.
//
// The file is written as FILE.part; close() syncs it to the disk and renames it, so FILE is always
// complete. If the run fails, FILE.part is removed; only a killed process leaves it behind. If a
// FILE.part exists already, the name is FILE-2.part, and so on. The functions throw Error(data)
// with the file's name.
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
  std::vector<std::uint64_t> left_out = {};                     // by rank: slices that did not fit
  std::vector<std::string> layers = {};                         // by TraceEvent::id
  std::vector<std::size_t> bucket_elements = {};
  bool has_gatherings = false;  // TraceKind::gather
  // The codec of each bucket, from `first_step` on. There may be several lists, because a warm-up
  // changes codecs. The first list applies from step 0.
  struct Codecs {
    std::uint64_t first_step = 0;
    std::vector<std::string> specs;
  };
  std::vector<Codecs> codecs = {};
};

class TraceFile {
 public:
  // Creates PATH.part, or PATH-2.part, ...
  TraceFile(const std::string& path, TraceInfo info);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Appends time slices of a rank. Times are in ns since the trace's start. Slices of one thread
  // must not overlap unless one contains the other. They must be sorted by their begin; if two
  // begin together, the longer one comes first.
  void append(std::size_t rank, std::span<const TraceEvent> events);
  // Completes the file. Fails if a file has appeared at PATH.
  void close();

 private:
  void append_header();
  void append_name(const char* what, std::size_t process, std::size_t thread,
                   const std::string& name);
  void append_event(std::size_t rank, const TraceEvent& event);
  [[nodiscard]] const std::string& codec_of(const TraceEvent& event) const;
  void flush();
  // Calls work(). If work() throws an error, adds the file's name to the message.
  template <class Work>
  void attempt(Work work) const;

  std::string path_, part_;
  TraceInfo info_;
  FileDescriptor file_;
  std::uint64_t bytes_ = 0;  // written so far
  bool is_whole_ = false;
  fmt::memory_buffer text_;  // not written yet
};

}  // namespace dp
