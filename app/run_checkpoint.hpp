// The parts of a run's set-up that a checkpoint decides.
#pragma once

#include "app/run_setup.hpp"

namespace dp {

// Collective, before the data are loaded: looks for the checkpoint to go on from, compares its
// options with the run's, and takes over what was chosen by measurement.
void find_checkpoint(Run& run);

// Collective, when the data are loaded: compares them, the build and the machine.
void compare_with_checkpoint(Run& run);

}  // namespace dp
