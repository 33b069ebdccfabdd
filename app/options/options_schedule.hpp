// The options of learning-rate and batch schedules: their rows of the table, and what follows from
// several together.
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

// Fills in what is not given, and refuses what the schedule of the learning rate has no use for.
void resolve_schedule(Options& options, const LayerOf& layer_of);

// Parts of the batch schedule that can have no effect with so many ranks, a sentence each.
[[nodiscard]] std::vector<std::string> batch_warnings(const Options& options, std::int64_t ranks);

}  // namespace dp
