#include "app/training/setup/agreement.hpp"

#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string_view>

#include "app/process/build_info.hpp"
#include "app/process/rank_main.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

std::uint64_t hash_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

// Collective. If some rank's text differs from rank 0's, calls tell() on rank 0 with the first such
// rank, its text and the text of rank 0. All ranks throw what tell() throws.
template <class Tell>
void compare(Communicator& comm, const std::string& mine, Tell tell) {
  const std::vector<std::uint64_t> hashes = comm.all_gather(hash_of(mine));
  std::size_t odd = 1;
  while (odd < hashes.size() && hashes[odd] == hashes[0]) ++odd;
  if (odd >= hashes.size()) return;
  const std::vector<std::string> all = comm.gather(mine);
  together(comm, kDptrainNames, [&] {
    if (comm.rank() == 0) tell(odd, all[odd], all[0]);
  });
}

// Returns a description such as "AMD EPYC, 2 threads, AVX-512, oneDNN 2.6.3" without the number of
// threads.
std::string without_threads(const std::string& description) {
  const std::size_t end = description.find(" thread");
  if (end == std::string::npos) return description;
  const std::size_t begin = description.rfind(", ", end);
  const std::size_t rest = description.find(',', end);
  if (begin == std::string::npos || rest == std::string::npos) return description;
  return description.substr(0, begin) + description.substr(rest);
}

}  // namespace

void agree_on_program(Communicator& comm) {
  struct Key {
    std::uint64_t source, architecture, build;
  };
  const std::string revision = git_revision(), build = build_id();
  const std::string source = fmt::format("dptrain {} of revision {}", DP_VERSION, revision);
  // Builds for two architectures always differ, so their sources are compared. Equal revisions mean
  // equal sources only if nothing was changed since the revision.
  const bool names_sources = revision != "unknown" && !revision.ends_with("-dirty");
  const std::vector<Key> keys = comm.all_gather(Key{.source = hash_of(source + mpi_version()),
                                                    .architecture = hash_of(architecture()),
                                                    .build = hash_of(build)});
  const auto fits = [&](const Key& a, const Key& b) {
    if (a.source != b.source) return false;
    return a.architecture == b.architecture ? a.build == b.build : names_sources;
  };
  std::size_t odd = 1, other = 0;
  for (; odd < keys.size(); ++odd) {
    for (other = 0; other < odd && fits(keys[odd], keys[other]);) ++other;
    if (other < odd) break;
  }
  if (odd >= keys.size()) return;
  const std::vector<std::string> all = comm.gather(
      fmt::format("{}, build {} for {}, with {}", source, build, architecture(), mpi_version()));
  together(comm, kDptrainNames, [&] {
    if (comm.rank() != 0) return;
    throw_error(ErrorKind::usage,
                "rank {} on host {} is {}; rank {} on host {} is {}: all hosts need the same "
                "program and the same Open MPI: build the same revision with the same compiler, or "
                "copy the program or the bundle to all of them{}",
                odd, comm.hosts()[odd], all[odd], other, comm.hosts()[other], all[other],
                keys[odd].architecture == keys[other].architecture
                    ? ""
                    : "; for another architecture, build a revision without changes (git status)");
  });
}

void agree_on_options(Communicator& comm, Options& options,
                      const std::vector<std::string>& arguments, const OptionContext& context) {
  std::string words;
  for (const std::string& argument : arguments) words += argument + '\0';
  const std::vector<std::uint64_t> hashes = comm.all_gather(hash_of(words));
  const auto rank = static_cast<std::size_t>(comm.rank());
  together(comm, kDptrainNames, [&] {
    if (hashes[rank] == hashes[0]) return;
    const std::string who = fmt::format("rank {} on host {}", rank, comm.host());
    Options mine;
    try {
      mine = parse_options(arguments, context);
    } catch (const std::exception& error) {
      throw_error(ErrorKind::usage, "{} was started with other options than rank 0: {}", who,
                  error.what());
    }
    const auto here = mine.resolved(), there = options.resolved();
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (here[i].second == there[i].second) continue;
      if (here[i].first == "device" || here[i].first == "threads") continue;
      const auto shown = [](const std::string& value) { return value.empty() ? "unset" : value; };
      throw_error(ErrorKind::usage,
                  "{} was started with --{} {}, rank 0 with {}: all ranks need the same options",
                  who, here[i].first, shown(here[i].second), shown(there[i].second));
    }
    if (mine.action != options.action) {
      throw_error(ErrorKind::usage, "{} was started for another action than rank 0", who);
    }
    options.device = mine.device;
    options.threads = mine.threads;
  });
}

void agree_on_processors(Communicator& comm, const Options& options, const Device& device) {
  const bool is_muon = options.optimizer == Options::Optimizer::muon && options.exchange;
  if (is_muon) {
    compare(comm, without_threads(device.description()),
            [&](std::size_t rank, const std::string& other, const std::string& first) {
              throw_error(ErrorKind::device,
                          "--optimizer muon: rank {} on host {} has another processor ({}) than "
                          "rank 0 ({}), and the two round Muon's products differently: use the "
                          "same kind of processor on all ranks, or another optimiser",
                          rank, comm.hosts()[rank], other, first);
            });
  }
  compare(comm, device.description(),
          [&](std::size_t rank, const std::string& other, const std::string& first) {
            std::fprintf(
                stderr,
                "dptrain: rank %zu on host %s computes on %s, rank 0 on %s: the replicas stay "
                "equal, but a repeated run has the same bits only on the same kinds of machines\n",
                rank, comm.hosts()[rank].c_str(), other.c_str(), first.c_str());
          });
}

}  // namespace dp
