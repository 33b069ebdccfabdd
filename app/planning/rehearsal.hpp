// Rehearses steps: computes a few without any exchange, and notes when each tensor's gradient is
// final. --plan and a run's own prediction begin with it (comm/network/step_simulation.hpp).
//
// A rehearsal leaves the replica's state as it was before, bit for bit.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "app/training/replica/replica.hpp"
#include "io/images/loader.hpp"

namespace dp {

// Seconds of one rank since the beginning of its step, which begins with waiting for the batch.
struct RehearsedStep {
  std::vector<double> ready_s;  // by tensor
  double backward_end_s = 0.0;
  double update_s = 0.0;  // of the optimiser
};

struct RehearsalOptions {
  std::size_t steps = 5;  // besides the first one, which warms up
  double seconds = 5.0;   // at least one step is measured, however long it takes
  std::size_t parts = 1;  // batches in a step
  // The next batch, valid until the next call; called as often as needed.
  std::function<const Batch&()> next = nullptr;
};

// Collective, between steps: returns the steps of all ranks, [step][rank], the same on all of them.
// The ranks begin each step together. A step in several parts computes all of them; its gradients
// are final in the last one.
[[nodiscard]] std::vector<std::vector<RehearsedStep>> rehearse_steps(
    Replica& replica, const RehearsalOptions& options);

// The same with the batches of the loader's first epochs, except the smaller last ones. Afterwards
// the loader's next epoch must be started anew.
[[nodiscard]] std::vector<std::vector<RehearsedStep>> rehearse_steps(Replica& replica,
                                                                     Loader& loader,
                                                                     RehearsalOptions options);

}  // namespace dp
