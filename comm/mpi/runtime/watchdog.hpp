// Ends the process if a call of MPI that waits inside the library takes too long.
//
// MPI_Init, MPI_Comm_dup, MPI_Finalize and MPI_Abort wait for other ranks and have no deadline. A
// thread of the watchdog waits beside them. When the time is over it looks which ranks of this host
// are stopped, says in one sentence what was waited for, and ends the process; mpirun then ends the
// job, and if it cannot, job_end.hpp does. Nothing runs while no call is watched, except that the
// thread sleeps.
//
//     a rank of this host is stopped           it is named when the timeout is over
//     all ranks are on this host and none is   they may be slow, so ten timeouts are waited
//     other hosts have ranks                   nobody here can ask them: the timeout, but for
//                                              MPI_Init at least 15 s, since ranks may start at
//                                              different times
//
// All hosts notice at the same time. Where a rank is stopped it is said at once; elsewhere a second
// later, one host after the other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace dp {

struct WatchdogOptions {
  std::string program;         // begins the message
  std::string timeout_option;  // "--comm-timeout"; empty: nothing is advised
  double timeout_s = 60.0;
  // Called before the process is ended, by the watchdog's thread, with the exit code.
  std::function<void(int)> on_end = {};
};

class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void set_timeout_s(double timeout_s);

  // Runs f, which calls MPI, and ends the process if it takes too long. `call` completes "silent
  // for 60 s in ...".
  template <class F>
  void watch(const char* call, F f) {
    begin(call);
    try {
      f();
    } catch (...) {
      end();
      throw;
    }
    end();
  }

  // From now on, until the process ends: it ends with that exit code after `limit_s`, without a
  // word. For the end of a job that has been explained already.
  void end_soon(int exit_code, double limit_s);

 private:
  using Clock = std::chrono::steady_clock;

  void begin(const char* call);
  void end() { begin(nullptr); }
  void main_loop();
  // What there is to say now; empty if the wait goes on.
  [[nodiscard]] std::string verdict(const std::string& call, double waited_s,
                                    double timeout_s) const;

  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const char* call_ = nullptr;
  Clock::time_point began_;
  int exit_code_ = 0;  // of end_soon
  Clock::time_point end_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dp
