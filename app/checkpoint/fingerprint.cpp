#include "app/checkpoint/fingerprint.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "app/options/options_removed.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

const std::string kOption = "option.", kFact = "fact.";

// Options that may differ between the checkpoint and the resumed run. Most of them do not affect
// the remaining training. The others set initial weights or choices made by measurement; for these
// the run uses what is in the checkpoint.
constexpr std::array<std::string_view, 32> kFree = {
    "recipe",       "data-dir",        "log",         "log-steps",      "export",
    "trace",        "trace-steps",     "quiet",       "verbose",        "checkpoint",
    "resume",       "checkpoint-keep", "throttle",    "comm-timeout",   "checkpoint-every",
    "overlap",      "test-augment",    "autotune",    "loader-threads", "check-replicas",
    "init",         "init-from",       "init-except", "threads",        "device",
    "gpu-exchange", "accept-build",    "config",      "check",          "progress",
    "tensorboard",  "planned-ranks"};

constexpr const char* kMayChange =
    "--epochs, milestones=, --shares, the number of ranks, and options of the machine, the "
    "network's timing, logs, traces and checkpoints";

bool is_in(std::string_view name, std::span<const std::string_view> list) {
  return std::ranges::find(list, name) != list.end();
}

// "0,0,1,1": each rank's host as a number. Hosts are numbered in the order of their first ranks.
std::string grouping(const std::vector<std::string>& hosts) {
  std::map<std::string, std::size_t> numbers;
  std::vector<std::size_t> by_rank;
  for (const std::string& host : hosts) {
    by_rank.push_back(numbers.try_emplace(host, numbers.size()).first->second);
  }
  return fmt::format("{}", fmt::join(by_rank, ","));
}

// Whether the user may change this option for the rest of the training. The user may change the
// number of epochs, the milestones that follow from it, and the ranks' shares of images.
bool may_change_the_rest(const std::string& name, const std::string& value,
                         const std::string& earlier) {
  return name == "epochs" || name == "shares" ||
         (name == "lr-schedule" &&
          without_key(name, value, "milestones") == without_key(name, earlier, "milestones"));
}

std::string named(const std::string& value) { return value.empty() ? "nothing" : value; }

}  // namespace

void add_options(CheckpointHead& head, const Options& options) {
  for (const auto& [name, value] : options.resolved()) head.set(kOption + name, value);
}

void add_facts(CheckpointHead& head, const RunFacts& facts) {
  head.set(kFact + "ranks", static_cast<std::uint64_t>(facts.ranks));
  head.set(kFact + "hosts", grouping(facts.hosts));
  head.set(kFact + "device", facts.device);
  head.set(kFact + "device_kind", facts.device_kind);
  head.set(kFact + "mpi_version", facts.mpi_version);
  head.set(kFact + "build", facts.build);
  head.set(kFact + "data_hash", fmt::format("{:016x}", facts.data_hash));
}

bool is_same_fleet(const CheckpointHead& head, const RunFacts& facts) {
  CheckpointHead mine;
  add_facts(mine, facts);
  return std::ranges::all_of(std::array{"ranks", "hosts", "build"}, [&](const char* name) {
    return mine.get(kFact + name) == head.get(kFact + name);
  });
}

std::vector<std::string> compare_options(const CheckpointHead& head, const Options& options) {
  CheckpointHead mine;
  add_options(mine, options);
  std::vector<std::string> told;
  // Some options of earlier versions have become keys of other options. They are translated before
  // the comparison.
  const std::map<std::string, std::string> then = with_keys(head.all(kOption));
  for (const auto& [name, value] : mine.all(kOption)) {
    const auto earlier = then.find(name);
    // An option that the checkpoint does not know was added by a later dptrain. It is not compared.
    if (earlier == then.end() || earlier->second == value || is_in(name, kFree)) continue;
    if (may_change_the_rest(name, value, earlier->second)) {
      told.push_back(
          fmt::format("--{} {} instead of {}", name, named(value), named(earlier->second)));
      continue;
    }
    throw_error(ErrorKind::usage,
                "--{} {}: the run in --checkpoint {} was begun with {}, so it would become "
                "another run; allowed changes: {}",
                name, named(value), options.checkpoint, named(earlier->second), kMayChange);
  }
  return told;
}

std::vector<std::string> compare_facts(const CheckpointHead& head, const Options& options,
                                       const RunFacts& facts) {
  CheckpointHead mine;
  add_facts(mine, facts);
  std::vector<std::string> told;
  const auto fact = [&](const char* name) -> const std::string& { return mine.get(kFact + name); };
  const auto fact_then = [&](const char* name) -> const std::string& {
    return head.get(kFact + name);
  };
  if (fact("data_hash") != fact_then("data_hash")) {
    throw_error(ErrorKind::data,
                "--data-dir {}: the run in --checkpoint {} was begun with other data (hash {} "
                "instead of {}): restore the files, or begin a new run in another folder",
                named(options.data_dir), options.checkpoint, fact("data_hash"),
                fact_then("data_hash"));
  }
  if (fact("build") != fact_then("build") && !options.accept_build) {
    throw_error(ErrorKind::usage,
                "--resume: the checkpoint in {} was written by dptrain {}, and this is dptrain "
                "{}, which may compute other bits; use the same build, or continue with "
                "--accept-build",
                options.checkpoint, fact_then("build"), fact("build"));
  }
  const auto tell = [&](const char* name, const char* what) {
    if (fact(name) == fact_then(name)) return;
    told.push_back(fmt::format("{} {} instead of {}", what, fact(name), fact_then(name)));
  };
  if (fact("ranks") != fact_then("ranks")) {
    told.push_back(fmt::format("{} rank{} instead of {}", fact("ranks"),
                               fact("ranks") == "1" ? "" : "s", fact_then("ranks")));
  } else {
    tell("hosts", "ranks on hosts");
  }
  tell("build", "dptrain");
  tell("mpi_version", "MPI");
  return told;
}

std::string device_in(const CheckpointHead& head) { return head.get(kFact + "device"); }

std::vector<std::string> device_changes(const std::vector<std::string>& now,
                                        const std::vector<std::string>& then) {
  std::map<std::string, std::vector<std::size_t>> ranks;  // by the text of the difference
  for (std::size_t rank = 0; rank < now.size(); ++rank) {
    if (then[rank].empty() || then[rank] == now[rank]) continue;
    ranks[fmt::format("{} instead of {}", now[rank], then[rank])].push_back(rank);
  }
  std::vector<std::string> told;
  for (const auto& [what, who] : ranks) {
    told.push_back(who.size() == now.size()
                       ? fmt::format("the device {}", what)
                       : fmt::format("the device of rank{} {} {}", who.size() == 1 ? "" : "s",
                                     fmt::join(who, ", "), what));
  }
  return told;
}

}  // namespace dp
