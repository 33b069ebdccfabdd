// What decides a run's result beside its state, as part of a checkpoint's head: options, data,
// build, and the machine.
//
// A run that goes on is compared with it. Options that decide the result, and the data, must be the
// same. What may change is told in a line if it has changed: the number of ranks, the machine,
// the number of epochs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint_head.hpp"
#include "app/options/options.hpp"

namespace dp {

// What a run is made of besides its options.
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

// Whether the run has as many ranks as before, on as many hosts in the same way, and the same
// build.
[[nodiscard]] bool is_same_fleet(const CheckpointHead& head, const RunFacts& facts);

// Throws Error(usage), with one sentence that names the option and what may change, where an option
// decides the result and is not the checkpoint's. Returns the others that differ: a phrase each,
// such as "--epochs 40 instead of 30".
[[nodiscard]] std::vector<std::string> compare_options(const CheckpointHead& head,
                                                       const Options& options);

// The same for data (Error(data)), build and machine, but for the devices.
[[nodiscard]] std::vector<std::string> compare_facts(const CheckpointHead& head,
                                                     const Options& options, const RunFacts& facts);

// The device of the rank whose part of the checkpoint has this head.
[[nodiscard]] std::string device_in(const CheckpointHead& head);

// By rank: its device, and the one on which its part was computed (empty: it has none). A phrase
// for each kind of change.
[[nodiscard]] std::vector<std::string> device_changes(const std::vector<std::string>& now,
                                                      const std::vector<std::string>& then);

}  // namespace dp
