// Ends the process if an MPI call that waits inside the library takes too long.
//
// MPI_Init, MPI_Comm_dup, MPI_Finalize and MPI_Abort wait for other ranks and have no deadline. The
// watchdog's thread limits them. When the time is over, it checks which ranks of this host are
// stopped, reports the wait in one sentence, and ends the process. mpirun then ends the job; if it
// cannot, job_end.hpp does. While no call is watched, the thread sleeps.
//
//     a rank of this host is stopped    it is reported when the timeout is over
//     no rank is stopped, and all       the ranks may be slow, so the watchdog waits ten timeouts
//     ranks are on this host
//     other hosts have ranks            their state is unknown here, so the watchdog waits one
//                                       timeout, and for MPI_Init at least 15 s, since ranks may
//                                       start at different times
//
// The timeout ends on all hosts at the same time. A host with a stopped rank reports at once. The
// other hosts report a second later, one after the other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace dp {

struct WatchdogOptions {
  std::string program;         // the message's prefix
  std::string timeout_option;  // "--comm-timeout"; empty: no advice in the message
  double timeout_s = 60.0;
  // The watchdog's thread calls this function with the exit code and then ends the process.
  std::function<void(int)> on_end = {};
};

class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void set_timeout_s(double timeout_s);

  // Runs f, which calls MPI, and ends the process if f takes too long. `call` is the name of the
  // wait in the message "... silent for 60 s in CALL".
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

  // Ends the process with that exit code after `limit_s`, without a message. Call it only if the
  // end of the job has been reported already. The call cannot be undone.
  void end_soon(int exit_code, double limit_s);

 private:
  using Clock = std::chrono::steady_clock;

  void begin(const char* call);
  void end() { begin(nullptr); }
  void main_loop();
  // The message that ends the wait; empty while the wait continues.
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
