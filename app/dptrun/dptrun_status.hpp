// The progress that a running dptrun shows to its user on the same host: `dptrun status`.
//
// Each dptrun keeps a small file of its own, named by its PID, in a folder that only its user can
// access ($XDG_RUNTIME_DIR/dptrun, otherwise /tmp/dptrun-UID). An update writes a new file under
// another name and then renames it to the final name. At its end dptrun removes the file. Files of
// processes that have ended are ignored and removed. If the folder cannot be used, there is no
// file, and the run goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dp {

// Progress of a run, as far as it is known.
struct RunProgress {
  std::string state = "starts";       // or "trains", "waits for hosts"
  std::string hosts;                  // "a:1,b:2"; empty: mpirun's own choice
  std::int64_t ranks = 0;             // 0: mpirun's own choice
  std::string images;                 // of each rank in a step: "44 44 26 14"; empty: unknown
  std::uint64_t step = 0, steps = 0;  // done, and of the whole run; 0: unknown
  double steps_per_s = 0;             // 0: unknown
  std::int64_t restarts = 0;
  std::string command;
};

// Steps per second over about the last half minute.
class StepPace {
 public:
  using Clock = std::chrono::steady_clock;
  void add(std::uint64_t steps, Clock::time_point when = Clock::now());
  // Forgets earlier steps. Call it if the next steps do not follow directly on the earlier ones.
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

  // Writes at most once a second, unless the state has changed.
  void update(const RunProgress& progress);

 private:
  std::string path_;  // empty: there is none
  std::string last_state_;
  std::chrono::steady_clock::time_point written_;
};

[[nodiscard]] std::string progress_text(const RunProgress& progress);
// Throws Error(data) for text that progress_text() did not write.
[[nodiscard]] RunProgress parse_progress(const std::string& text);

// The table that `dptrun status` prints: this user's runs on this host.
[[nodiscard]] std::string status_table();

}  // namespace dp
