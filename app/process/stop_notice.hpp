// Ctrl-C (SIGINT), SIGTERM and SIGUSR1 ask the run to stop. The first signal is a request: the run
// ends after a step on which all ranks agree (ReducerOptions::stop_wish, evaluation.hpp). The
// second signal ends the process at once, with exit code 128 + the signal's number as in a shell.
//
// Before the first step nothing can be lost. The first signal then ends the process at once, with
// the exit code of a stopped run (ErrorKind::stopped).
//
// Rank 0 prints a line at every signal: how far the run has come, and where its log and its
// checkpoints are. The signal handler itself writes the line, because mpirun passes a Ctrl-C on as
// SIGTERM and kills its ranks a second later. Until a signal arrives, all this costs nothing. A
// process has one notice, because it has one handler.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

namespace dp {

class StopNotice {
 public:
  // Catches the three signals from now on, without a line.
  StopNotice();
  ~StopNotice();  // restores what the signals did before
  StopNotice(const StopNotice&) = delete;
  StopNotice& operator=(const StopNotice&) = delete;

  // From now on this rank prints the lines.
  static void speak();

  // The run's result is known and reported. From now on the first signal does nothing, because
  // mpirun sends a signal to ranks that end a little later than others.
  static void run_is_over();

  // Becomes true when a signal has asked this rank to stop.
  [[nodiscard]] static const std::atomic<bool>& wish();

  // These functions set parts of the line. A path of 500 characters or more is cut.
  static void set_log(const std::string& path);
  static void set_checkpoints(const std::string& folder);
  // The run is in step `step` of `steps` of epoch `epoch` of `epochs`, all counted from 1.
  static void set_place(std::size_t epoch, std::size_t epochs, std::size_t step, std::size_t steps);

  // While a Hold exists, a signal that ends the process at once still prints its line, but the
  // process ends only when the last Hold is destroyed, or at one more signal. Use it while a file
  // is written.
  class Hold {
   public:
    Hold();
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
  };
};

}  // namespace dp
