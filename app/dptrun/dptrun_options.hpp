// dptrun's command line: its own options, "--", and the command that it runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/dptrun/dptrun_hosts.hpp"

namespace dp {

struct DptrunOptions {
  bool asks_for_help = false, asks_for_version = false;
  std::int64_t ranks = 0;      // 0: not given
  std::vector<RunHost> hosts;  // empty: mpirun's own choice
  std::string hostfile = {};   // the file that `hosts` are read from; empty: they are from --host
  double join_after_s = 60;    // time between two looks for hosts that come and go; 0: none
  std::int64_t min_hosts = 1;
  std::int64_t max_restarts = 10;
  double silence_s = 0;                  // 0: from the command's --comm-timeout
  std::vector<int> stop_signals = {};    // besides SIGINT and SIGTERM
  std::string agent = {};                // starts programs on hosts; empty: ssh
  std::vector<std::string> mpirun = {};  // further arguments
  bool oversubscribe = false;
  std::vector<std::string> command = {};  // dptrain and its arguments
};

// Throws Error(usage).
[[nodiscard]] DptrunOptions parse_dptrun(const std::vector<std::string>& arguments);

[[nodiscard]] std::string dptrun_help();

// mpirun's command line for an attempt on these hosts. In a restart dptrain resumes from its newest
// checkpoint. With fewer ranks than planned, the global batch keeps its planned size.
[[nodiscard]] std::vector<std::string> mpirun_words(const DptrunOptions& options,
                                                    const std::vector<RunHost>& hosts,
                                                    bool is_restart);
// Number of ranks of this attempt; 0: mpirun chooses.
[[nodiscard]] std::int64_t ranks_on(const DptrunOptions& options,
                                    const std::vector<RunHost>& hosts);

// An attempt counts as dead after this time without a sign of life.
[[nodiscard]] double silence_of(const DptrunOptions& options);

// The command that starts programs on other hosts: the one that the user gave, or "ssh ...".
[[nodiscard]] std::string agent_of(const DptrunOptions& options);

}  // namespace dp
