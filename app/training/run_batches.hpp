// The batch sizes of a run: in how many parts a rank computes them, and their plans.
#pragma once

#include "app/training/run_setup.hpp"

namespace dp {

// Collective. Decides run.largest_part.
void plan_parts(Run& run);
// When the parts are planned. Throws Error(usage) if batch normalisation has a single value in
// every step, and warns on rank 0 if it has in some.
void check_single_images(Run& run);
// Collective. Plans the exchange, and the network for every batch size that will be used.
void prepare_batch_sizes(Run& run);

}  // namespace dp
