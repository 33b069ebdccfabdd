// The options of checkpoints: their rows of the table, and what --checkpoint-every means.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "app/options/options.hpp"
#include "app/options/options_row.hpp"

namespace dp {

// How often a checkpoint is written: one of the three is set.
struct CheckpointCadence {
  std::size_t epochs = 0, steps = 0;
  double seconds = 0;
};

inline constexpr const char* kCheckpointCadences =
    "a whole number of epochs or steps, or a time, with its unit: 1epoch, 500steps, 30s, 10min, 2h";

// Throws Error(usage) with the option's name.
[[nodiscard]] CheckpointCadence parse_checkpoint_cadence(std::string_view option,
                                                         std::string_view text);

[[nodiscard]] std::vector<OptionRow> checkpoint_rows(Options& options);

}  // namespace dp
