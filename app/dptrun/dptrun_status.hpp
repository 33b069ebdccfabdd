// What a dptrun that is under way tells others of the same user: `dptrun status`, from any terminal
// of its host.
//
// A dptrun keeps a small file of its own, PID, in a folder that only its user can use
// ($XDG_RUNTIME_DIR/dptrun, otherwise /tmp/dptrun-UID). It is written whole under another name and
// renamed, and removed at the end. Files of processes that have ended are ignored and removed. If
// the folder cannot be used, there is no file, and the run goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dp {

// What is known of the run under way.
struct RunProgress {
  std::string state = "starts";       // or "trains", "waits for hosts"
  std::string hosts;                  // "a:1,b:2"; empty: mpirun's own choice
  std::int64_t ranks = 0;             // 0: mpirun's own choice
  std::string images;                 // of each rank in a step: "44 44 26 14"; empty: not known
  std::uint64_t step = 0, steps = 0;  // done, and of the whole run; 0: not known
  double steps_per_s = 0;             // 0: not known
  std::int64_t restarts = 0;
  std::string command;
};

// The steps a second of the last half minute or so.
class StepPace {
 public:
  using Clock = std::chrono::steady_clock;
  void add(std::uint64_t steps, Clock::time_point when = Clock::now());
  // The steps that come were not done one after the other with these.
  void begin_anew() { marks_.clear(); }
  [[nodiscard]] double steps_per_s() const;

 private:
  std::deque<std::pair<Clock::time_point, std::uint64_t>> marks_;
};

class StatusFile {
 public:
  StatusFile();
  ~StatusFile();  // removes the file
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

  // At most once a second, unless the state is another one.
  void update(const RunProgress& progress);

 private:
  std::string path_;  // empty: there is none
  std::string last_state_;
  std::chrono::steady_clock::time_point written_;
};

[[nodiscard]] std::string progress_text(const RunProgress& progress);
// Throws Error(data) for text that the other has not written.
[[nodiscard]] RunProgress parse_progress(const std::string& text);

// The table that `dptrun status` prints: this user's runs on this host.
[[nodiscard]] std::string status_table();

}  // namespace dp
