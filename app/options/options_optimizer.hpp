// The options of optimisers: their rows of the table, and the rules between several options.
#pragma once

#include <vector>

#include "app/options/options.hpp"
#include "app/options/options_layers.hpp"
#include "app/options/options_row.hpp"

namespace dp {

[[nodiscard]] std::vector<OptionRow> optimizer_rows(Options& options);

// Gives the optimiser's own defaults to options that are not given. Refuses options that the
// optimiser does not use.
void resolve_optimizer(Options& options, const LayerOf& layer_of);

// The defaults of options that depend on options.optimizer.
void set_optimizer_defaults(Options& options);

}  // namespace dp
