// Rehearses training steps: computes a few steps without any exchange, and notes when each tensor's
// gradient is final. --plan and a run's own prediction begin with a rehearsal
// (comm/network/step_simulation.hpp).
//
// A rehearsal leaves the replica's state as it was before, bit for bit.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "app/training/replica/replica.hpp"
#include "io/images/loader.hpp"

namespace dp {

// Times of one rank's step. The first two count from the beginning of the step, when the rank
// begins to wait for the batch.
struct RehearsedStep {
  std::vector<double> ready_s;  // by tensor
  double backward_end_s = 0.0;
  double update_s = 0.0;  // the duration of the optimiser's update
};

struct RehearsalOptions {
  std::size_t steps = 5;  // besides the first one, which warms up
  double seconds = 5.0;   // after this time no other step begins, but at least one is measured
  std::size_t parts = 1;  // batches in a step
  // The next batch, valid until the next call; called as often as needed.
  std::function<const Batch&()> next = nullptr;
};

// Collective, between steps. Returns the steps of all ranks, [step][rank], the same on every rank.
// The ranks begin each step together. In a step of several parts, all parts are computed, and the
// gradients become final in the last one.
[[nodiscard]] std::vector<std::vector<RehearsedStep>> rehearse_steps(
    Replica& replica, const RehearsalOptions& options);

// The same with the batches of the loader's first epochs, except the smaller last batch of an
// epoch. Afterwards the loader's next epoch must be started anew.
[[nodiscard]] std::vector<std::vector<RehearsedStep>> rehearse_steps(Replica& replica,
                                                                     Loader& loader,
                                                                     RehearsalOptions options);

}  // namespace dp
