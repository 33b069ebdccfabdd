// The options of dptrain that decide what a run prints and writes.
#pragma once

#include <vector>

#include "app/options/options.hpp"
#include "app/options/options_layers.hpp"
#include "app/options/options_row.hpp"

namespace dp {

[[nodiscard]] std::vector<OptionRow> output_rows(Options& options);

// Throws Error(usage) for options that do not fit together.
void resolve_output(Options& options, const LayerOf& layer_of);

}  // namespace dp
