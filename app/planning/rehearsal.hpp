// Rehearses steps: computes a few, without any exchange, and notes when each tensor's gradient is
// final. --plan and a run's own prediction begin with it (comm/network/step_simulation.hpp).
//
// A rehearsal leaves no trace in the replica: all state that a run has is afterwards what it was
// before, bit for bit.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "app/training/replica/replica.hpp"
#include "io/images/loader.hpp"

namespace dp {

// Seconds of one rank, from the begin of its step, which waits for the batch first.
struct RehearsedStep {
  std::vector<double> ready_s;  // by tensor
  double backward_end_s = 0.0;
  double update_s = 0.0;  // of the optimiser
};

struct RehearsalOptions {
  std::size_t steps = 5;  // besides the first one, which warms up
  double seconds = 5.0;   // at least one step is measured, however long it takes
  std::size_t parts = 1;  // of a step: that many batches
  // The next batch, valid until the next call; one after the other, for as many steps as needed.
  std::function<const Batch&()> next = nullptr;
};

// Collective, between steps: the steps of all ranks, [step][rank], the same on all of them. The
// ranks begin each step together. A step in several parts has the computation of all parts, and
// gradients are final in the last one.
[[nodiscard]] std::vector<std::vector<RehearsedStep>> rehearse_steps(
    Replica& replica, const RehearsalOptions& options);

// With the batches of the loader's first epochs, but for their last and smaller ones. The loader's
// next epoch must be started anew.
[[nodiscard]] std::vector<std::vector<RehearsedStep>> rehearse_steps(Replica& replica,
                                                                     Loader& loader,
                                                                     RehearsalOptions options);

}  // namespace dp
