// The options of checkpoints: their rows of the table, and the parser of --checkpoint-every.
#pragma once

#include <string_view>
#include <vector>

#include "app/options/options.hpp"
#include "app/options/options_row.hpp"

namespace dp {

inline constexpr const char* kCheckpointCadences =
    "a whole number of epochs or steps, or a time, with its unit: 1epoch, 500steps, 30s, 10min, 2h";

// Throws Error(usage).
[[nodiscard]] CheckpointCadence parse_checkpoint_cadence(std::string_view text);

[[nodiscard]] std::vector<OptionRow> checkpoint_rows(Options& options);

}  // namespace dp
