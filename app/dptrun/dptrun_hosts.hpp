// The hosts of a run, from --host or --hostfile, and whether they answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

struct RunHost {
  std::string name;
  std::int64_t slots = 1;  // ranks that it takes
  bool operator==(const RunHost&) const = default;
};

// "a:2,b": a with two ranks, b with one. Throws Error(usage).
[[nodiscard]] std::vector<RunHost> parse_hosts(std::string_view text);
// Reads Open MPI's format: a line "a slots=2" for each host, and comments after #. Throws
// Error(usage), which names the line.
[[nodiscard]] std::vector<RunHost> read_hostfile(const std::string& path);
// The words of the text, split at blanks.
[[nodiscard]] std::vector<std::string> words_of(const std::string& text);
// The text from which parse_hosts() reads these hosts.
[[nodiscard]] std::string to_text(const std::vector<RunHost>& hosts);

// For each host, whether `AGENT HOST true` has succeeded within timeout_s. All hosts are asked at
// the same time, except the host that this program runs on, which counts as answering. The agent is
// a command with its options, as in Open MPI's plm_rsh_agent.
[[nodiscard]] std::vector<bool> ask_hosts(const std::vector<RunHost>& hosts,
                                          const std::string& agent, double timeout_s);

}  // namespace dp
