// What Ctrl-C (SIGINT) and SIGTERM lead to: one line that says how far the run has come and where
// its log is, and the end of the process with exit code 130 or 143, as a shell counts.
//
// The line is written by the signal handler itself, at once: mpirun, which passes a Ctrl-C on as
// SIGTERM, kills its ranks a second later, whatever they are doing. It costs nothing while no
// signal comes. Rank 0 alone says something. There is one notice in a process, since there is one
// handler.
#pragma once

#include <cstddef>
#include <string>

namespace dp {

class StopNotice {
 public:
  // Catches the two signals from now on. A rank that is no speaker ends in the same way, silently.
  explicit StopNotice(bool is_speaker);
  ~StopNotice();  // the signals do what they did before
  StopNotice(const StopNotice&) = delete;
  StopNotice& operator=(const StopNotice&) = delete;

  // What the line says from now on. A path of 500 characters or more is cut.
  static void set_log(const std::string& path);
  // The run is in step `step` of so many of epoch `epoch`, all counted from 1.
  static void set_place(std::size_t epoch, std::size_t epochs, std::size_t step, std::size_t steps);

  // While one is alive, the line is written all the same, but the process goes on to the end of the
  // last of them: for the time in which a file is written.
  class Hold {
   public:
    Hold();
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
  };
};

}  // namespace dp
