// The parts of a run's set-up that a checkpoint decides.
#pragma once

#include "app/training/run_setup.hpp"

namespace dp {

// Collective, before the data are loaded: looks for the checkpoint to go on from, compares its
// options with the run's, and takes over what was chosen by measurement.
void find_checkpoint(Run& run);

// Collective: compares data, build and machines with those of the checkpoint: compare_facts(), and
// each rank's device with the one on which the part that it takes over was computed. Rank 0 gets
// what differs.
[[nodiscard]] std::vector<std::string> compare_machine(Communicator& comm, const ResumePoint& point,
                                                       const Options& options,
                                                       const RunFacts& facts);

// The same when the run's data are loaded.
void compare_with_checkpoint(Run& run);

}  // namespace dp
