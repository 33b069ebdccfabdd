// The options of rounds (--sync-every and its companions): their rows of the table, and the rules
// between several options.
#pragma once

#include <vector>

#include "app/options/options.hpp"
#include "app/options/options_layers.hpp"
#include "app/options/options_row.hpp"

namespace dp {

[[nodiscard]] std::vector<OptionRow> round_rows(Options& options);

// Refuses options that do not go together with rounds.
void resolve_rounds(Options& options, const LayerOf& layer_of, const OptionContext& context);

}  // namespace dp
