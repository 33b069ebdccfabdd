#include "comm/mpi/host_ranks.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>

namespace dp {
namespace {

constexpr const char* kRank = "OMPI_COMM_WORLD_RANK";
// kJob identifies the job. The job alone is not enough: in tests, several "hosts" of a job run
// under one kernel. A host is therefore identified by the daemon that has started its ranks. One of
// the two variables in kDaemons identifies this daemon. Open MPI 4 sets the first one to the
// daemon's address. Open MPI 5 and Slurm set the second one to a folder of the daemon's own.
constexpr const char* kJob = "PMIX_NAMESPACE";
constexpr std::array kDaemons = {"OMPI_MCA_orte_local_daemon_uri", "PMIX_SERVER_TMPDIR"};

int number(std::string_view text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// The number in the first of these variables that is set; -1 if none is.
int number_of(std::initializer_list<const char*> variables) {
  for (const char* variable : variables) {
    if (const char* text = std::getenv(variable)) return number(text);
  }
  return -1;
}

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The value of a variable in the kernel's copy of an environment, whose entries end with zeros.
std::string_view value_in(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return {};
}

}  // namespace

int rank_from_launcher() { return number_of({kRank, "PMIX_RANK", "SLURM_PROCID"}); }

int size_from_launcher() { return number_of({"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}); }

int local_size_from_launcher() {
  const bool is_one_host = number_of({"SLURM_STEP_NUM_NODES"}) == 1;
  const int size = number_of({"OMPI_COMM_WORLD_LOCAL_SIZE"});
  return size < 0 && is_one_host ? size_from_launcher() : size;
}

std::vector<HostRank> ranks_on_this_host() {
  std::vector<HostRank> ranks;
  const char* job = std::getenv(kJob);
  const auto variable =
      std::ranges::find_if(kDaemons, [](const char* name) { return std::getenv(name) != nullptr; });
  if (job == nullptr || variable == kDaemons.end()) return ranks;
  const std::string_view daemon = std::getenv(*variable);
  std::error_code code;
  for (std::filesystem::directory_iterator at("/proc", code), end; !code && at != end;
       at.increment(code)) {
    const std::string name = at->path().filename();
    if (number(name) <= 0) continue;
    const std::string environment = content(at->path() / "environ");
    if (value_in(environment, kJob) != job || value_in(environment, *variable) != daemon) continue;
    // The file contains "4711 (name) T ...". The search begins at the end, because the name may
    // contain spaces and brackets.
    const std::string state = content(at->path() / "stat");
    const std::size_t bracket = state.rfind(") ");
    if (bracket == std::string::npos || bracket + 2 >= state.size()) continue;
    const char letter = state[bracket + 2];
    if (letter == 'Z') continue;
    std::string_view rank = value_in(environment, kRank);
    if (rank.empty()) rank = value_in(environment, "PMIX_RANK");
    const HostRank found = {.rank = number(rank),
                            .process = static_cast<pid_t>(number(name)),
                            .is_stopped = letter == 'T' || letter == 't'};
    if (found.rank < 0) continue;
    // A wrapper script has the same environment as its rank. Of these processes, the one that was
    // started last is the rank.
    const auto same = std::ranges::find(ranks, found.rank, &HostRank::rank);
    if (same == ranks.end()) {
      ranks.push_back(found);
    } else if (found.process == ::getpid() ||
               (same->process != ::getpid() && found.process > same->process)) {
      *same = found;
    }
  }
  std::ranges::sort(ranks, {}, &HostRank::rank);
  return ranks;
}

}  // namespace dp
