// The options of learning-rate and batch schedules: their rows of the table.
#pragma once

#include <vector>

#include "app/options.hpp"
#include "app/options_row.hpp"

namespace dp {

[[nodiscard]] std::vector<OptionRow> schedule_rows(Options& options);
[[nodiscard]] OptionRow batch_schedule_row(Options& options);

}  // namespace dp
