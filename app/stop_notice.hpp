// On Ctrl-C (SIGINT) and SIGTERM the process prints one line that says how far the run has come and
// where its log is. It then ends with exit code 130 or 143, as in a shell.
//
// The signal handler itself writes the line, at once, because mpirun, which passes a Ctrl-C on as
// SIGTERM, kills its ranks a second later. This costs nothing while no signal comes. Only rank 0
// prints. A process has one notice, since there is one handler.
#pragma once

#include <cstddef>
#include <string>

namespace dp {

class StopNotice {
 public:
  // Catches the two signals from now on. A rank that is not the speaker ends in the same way
  // without a line.
  explicit StopNotice(bool is_speaker);
  ~StopNotice();  // restores what the signals did before
  StopNotice(const StopNotice&) = delete;
  StopNotice& operator=(const StopNotice&) = delete;

  // Sets what the line says from now on. A path of 500 characters or more is cut.
  static void set_log(const std::string& path);
  // The run is in step `step` of `steps` of epoch `epoch` of `epochs`, all counted from 1.
  static void set_place(std::size_t epoch, std::size_t epochs, std::size_t step, std::size_t steps);

  // While such an object exists, a signal still prints the line, but the process only ends when the
  // last object is destroyed. For times in which a file is written.
  class Hold {
   public:
    Hold();
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
  };
};

}  // namespace dp
