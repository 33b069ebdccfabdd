// Watches for hosts that come and go during a run: it reads the hostfile again, and asks the hosts
// that the run does not use whether they answer.
//
// A thread asks the hosts, so that the caller of poll() does not wait. The thread uses nothing of
// this object and may outlive it.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "app/dptrun/dptrun_hosts.hpp"

namespace dp {

struct HostWatchOptions {
  std::string hostfile;        // empty: the hosts are fixed
  std::vector<RunHost> hosts;  // all that the run may use, if there is no hostfile
  std::string agent;
  double every_s = 60;    // time between two looks; 0: never
  double answer_s = 10;   // time that a host may take to answer
  std::size_t least = 1;  // fewest hosts with which the run goes on
};

class HostWatch {
 public:
  // now: the hosts that the run uses.
  HostWatch(HostWatchOptions options, std::vector<RunHost> now);

  struct Change {
    std::vector<RunHost> hosts;  // of the run from now on
    std::string why;             // "node3 has come, node1 has gone"
  };
  // Call it often. Returns a change that was found since the last call.
  [[nodiscard]] std::optional<Change> poll();

 private:
  struct Look {
    std::vector<RunHost> hosts;
    std::string failure;  // error of reading the hostfile
  };
  [[nodiscard]] static Look look(const HostWatchOptions& options, const std::vector<RunHost>& now);

  HostWatchOptions options_;
  std::vector<RunHost> now_;
  std::chrono::steady_clock::time_point next_look_;
  std::future<Look> looking_;
};

}  // namespace dp
