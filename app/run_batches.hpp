// The batch sizes of a run: in how many parts a rank computes them, and their plans.
#pragma once

#include "app/run_setup.hpp"

namespace dp {

// Collective. Decides run.largest_part.
void plan_parts(Run& run);
// Collective. Plans the exchange, and the network for every batch size that will be used.
void prepare_batch_sizes(Run& run);

}  // namespace dp
