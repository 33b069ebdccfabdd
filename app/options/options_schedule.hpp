// The options of learning-rate and batch schedules: their rows of the table, and the rules between
// several options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/options/options.hpp"
#include "app/options/options_layers.hpp"
#include "app/options/options_row.hpp"

namespace dp {

[[nodiscard]] std::vector<OptionRow> schedule_rows(Options& options);
[[nodiscard]] OptionRow batch_schedule_row(Options& options);

// Fills in values that are not given, and refuses options that the learning-rate schedule does not
// use.
void resolve_schedule(Options& options, const LayerOf& layer_of);

// Parts of the batch schedule that have no effect with this number of ranks, a sentence each.
[[nodiscard]] std::vector<std::string> batch_warnings(const Options& options, std::int64_t ranks);

}  // namespace dp
