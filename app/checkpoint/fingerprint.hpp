// A run's options, data, build and machine, as keys of a checkpoint's head. Together with the state
// they decide the run's result.
//
// A resumed run is compared with these keys. The data, and options that decide the result, must be
// the same. Other differences, such as in the number of ranks, the machine or the number of epochs,
// are allowed and reported in one line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint_head.hpp"
#include "app/options/options.hpp"

namespace dp {

// The facts of a run besides its options.
struct RunFacts {
  std::size_t ranks = 1;
  std::vector<std::string> hosts = {};  // by rank
  std::string device = {};              // of this rank, with its threads and libraries
  std::string device_kind = {};         // "cpu" or "cuda"
  std::string mpi_version = {};
  std::string build = {};  // version, revision and build id of dptrain
  std::uint64_t data_hash = 0;
};

// Adds the keys "option.NAME" and "fact.NAME".
void add_options(CheckpointHead& head, const Options& options);
void add_facts(CheckpointHead& head, const RunFacts& facts);

// Whether the run has the same number of ranks as before, on the same number of hosts in the same
// arrangement, and the same build.
[[nodiscard]] bool is_same_fleet(const CheckpointHead& head, const RunFacts& facts);

// Throws Error(usage) if an option that decides the result differs from the checkpoint's. The
// message names that option and lists the allowed changes. Returns the other differences, a phrase
// each: "--epochs 40 instead of 30".
[[nodiscard]] std::vector<std::string> compare_options(const CheckpointHead& head,
                                                       const Options& options);

// Compares the facts in the same way. Throws Error(data) for other data, and Error(usage) for
// another build without --accept-build. Devices are compared by device_changes().
[[nodiscard]] std::vector<std::string> compare_facts(const CheckpointHead& head,
                                                     const Options& options, const RunFacts& facts);

// The device of the rank whose part of the checkpoint has this head.
[[nodiscard]] std::string device_in(const CheckpointHead& head);

// Both vectors have an entry for each rank. `now` names the rank's device. `then` names the device
// that computed the rank's part; the text is empty if the rank has no part. Returns a phrase for
// each kind of change.
[[nodiscard]] std::vector<std::string> device_changes(const std::vector<std::string>& now,
                                                      const std::vector<std::string>& then);

}  // namespace dp
