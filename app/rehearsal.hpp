// Rehearses steps: computes a few, without any exchange, and notes when each tensor's gradient is
// final. --plan and a run's own prediction begin with it (comm/step_simulation.hpp).
//
// A rehearsal leaves no trace in the run: parameters, running statistics and the optimiser's state
// are afterwards what they were before, bit for bit, and the loader begins its epoch anew.
#pragma once

#include <cstddef>
#include <vector>

#include "app/run_setup.hpp"

namespace dp {

// Seconds of one rank, from the begin of its step, which waits for the batch first.
struct RehearsedStep {
  std::vector<double> ready_s;  // by tensor
  double backward_end_s = 0.0;
  double update_s = 0.0;  // of the optimiser
};

struct RehearsalLimits {
  std::size_t steps = 5;  // besides the first one, which warms up
  double seconds = 5.0;   // at least one step is measured, however long it takes
};

// Collective, between steps, with a batch of the run's usual size: the steps of all ranks,
// [step][rank], the same on all of them. The ranks begin each step together. A step in several
// parts (--accumulate) has the computation of all parts; gradients are final in the last one.
[[nodiscard]] std::vector<std::vector<RehearsedStep>> rehearse_steps(Run& run,
                                                                     const RehearsalLimits& limits);

}  // namespace dp
