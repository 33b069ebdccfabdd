// One run of dptrain under mpirun, from its start to its end: its output goes on to this program's,
// and what its marks say (run_status.hpp) and how it ended is kept.
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

// The signals that ask to stop, as they come: SIGINT, SIGTERM, SIGHUP if nohup does not forbid it,
// and `more`. The process blocks them from construction on.
class StopSignals {
 public:
  explicit StopSignals(const std::vector<int>& more);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  [[nodiscard]] int stream() const { return stream_; }  // readable when one has come
  // Takes what has come. Returns how many there have been in all.
  int count();
  [[nodiscard]] int last() const { return last_; }  // the number of the last one

 private:
  int stream_ = -1, count_ = 0, last_ = 0;
  std::optional<std::chrono::steady_clock::time_point> hangup_;
};

struct AttemptReport {
  int exit_code = 0;                          // mpirun's, or dptrain's where that says more
  std::string why;                            // "mpirun was killed by signal 9 (Killed)"
  bool has_lived = false;                     // there was a mark
  bool is_asked_to_end = false;               // by must_end
  bool is_killed = false;                     // mpirun or a rank was, by SIGKILL or for silence
  std::optional<std::uint64_t> first_step;    // steps done when training began
  std::optional<std::uint64_t> last_step;     // steps done at the last mark
  std::chrono::steady_clock::time_point end;  // when it was last alive
};

struct AttemptRequest {
  std::vector<std::string> words;  // mpirun's command line
  double silence_s = 120;          // without a mark for so long it counts as dead
  // Called for each mark, without its checksum.
  std::function<void(std::string_view words)> on_mark;
  // Called at the first mark of a step.
  std::function<void(std::uint64_t steps)> on_first_step;
  // Called all the time while the run trains; true: it is to end after the running step, with a
  // checkpoint, as if a signal had asked for it.
  std::function<bool()> must_end;
};

// Throws Error(usage) if mpirun cannot be started. The first stop signal ends the run after its
// step (SIGUSR1), or at once if training has not begun; the second one ends it at once.
[[nodiscard]] AttemptReport run_attempt(const AttemptRequest& request, StopSignals& signals);

// "signal 9 (Killed)"
[[nodiscard]] std::string signal_text(int signal);

}  // namespace dp
