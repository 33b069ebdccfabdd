// Looks for hosts that come and go while a run is under way: reads the hostfile again, and asks
// hosts that the run does without whether they answer.
//
// The questions are asked by a thread, so that whoever calls poll() does not wait. The thread uses
// nothing of this object, and may outlive it.
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
  std::string hostfile;        // empty: hosts stay as they are
  std::vector<RunHost> hosts;  // all that the run may have, if there is no hostfile
  std::string agent;
  double every_s = 60;    // between two looks; 0: never
  double answer_s = 10;   // that a host may take to answer
  std::size_t least = 1;  // hosts with which the run goes on
};

class HostWatch {
 public:
  // `now`: the hosts of the run.
  HostWatch(HostWatchOptions options, std::vector<RunHost> now);

  struct Change {
    std::vector<RunHost> hosts;  // of the run from then on
    std::string why;             // "node3 has come, node1 has gone"
  };
  // Call it often. A change, if one was found since the last call.
  [[nodiscard]] std::optional<Change> poll();

 private:
  struct Look {
    std::vector<RunHost> hosts;
    std::string failure;  // of the hostfile
  };
  [[nodiscard]] static Look look(const HostWatchOptions& options, const std::vector<RunHost>& now);

  HostWatchOptions options_;
  std::vector<RunHost> now_;
  std::chrono::steady_clock::time_point next_look_;
  std::future<Look> looking_;
};

}  // namespace dp
