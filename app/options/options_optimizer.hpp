// The options of optimisers: their rows of the table, and what follows from several together.
#pragma once

#include <vector>

#include "app/options/options.hpp"
#include "app/options/options_layers.hpp"
#include "app/options/options_row.hpp"

namespace dp {

[[nodiscard]] std::vector<OptionRow> optimizer_rows(Options& options);

// Gives what is not given the optimiser's own defaults, and refuses what it has no use for.
void resolve_optimizer(Options& options, const LayerOf& layer_of);

// The defaults of options that depend on options.optimizer.
void set_optimizer_defaults(Options& options);

}  // namespace dp
