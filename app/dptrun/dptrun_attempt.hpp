// One run of dptrain under mpirun, from start to end. The run's output, without its status marks
// (run_status.hpp), is passed on to this program's output. An AttemptReport holds what the marks
// said and how the run ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/dptrun/dptrun_marks.hpp"
#include "app/dptrun/dptrun_session.hpp"

namespace dp {

// Receives the signals that ask to stop: SIGINT, SIGTERM, SIGHUP unless nohup ignores it, and
// `more`. The process blocks these signals from construction on.
class StopSignals {
 public:
  explicit StopSignals(const std::vector<int>& more);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  [[nodiscard]] int stream() const { return stream_; }  // readable when a signal has arrived
  // Takes the signals that have arrived. Returns how many there have been in all.
  int count();
  [[nodiscard]] int last() const { return last_; }  // the number of the last one

 private:
  int stream_ = -1, count_ = 0, last_ = 0;
  std::optional<std::chrono::steady_clock::time_point> hangup_;
};

struct AttemptReport {
  int exit_code = 0;                          // mpirun's, or dptrain's if that is more specific
  std::string why;                            // "mpirun was killed by signal 9 (Killed)"
  bool has_lived = false;                     // at least one mark arrived
  bool is_asked_to_end = false;               // must_end returned true
  bool is_killed = false;                     // mpirun died of a signal, or a rank of SIGKILL
  std::optional<std::uint64_t> first_step;    // steps done when training began
  std::optional<std::uint64_t> last_step;     // steps done at the last mark
  std::chrono::steady_clock::time_point end;  // when the run ended, or was last alive
};

struct AttemptRequest {
  std::vector<std::string> words;  // mpirun's command line
  double silence_s = 120;          // a run without a mark for this long counts as dead
  // Called for each mark, without its checksum.
  std::function<void(std::string_view words)> on_mark;
  // Called at the first mark of a step.
  std::function<void(std::uint64_t steps)> on_first_step;
  // Called again and again while the run trains. If it returns true, the run ends after the current
  // step, with a checkpoint, as on a stop signal.
  std::function<bool()> must_end;
};

// Throws Error(usage) if mpirun cannot be started. The first stop signal ends the run after its
// current step (SIGUSR1), or at once if training has not begun. The second signal ends the run at
// once.
[[nodiscard]] AttemptReport run_attempt(const AttemptRequest& request, StopSignals& signals);

// "signal 9 (Killed)"
[[nodiscard]] std::string signal_text(int signal);

}  // namespace dp
