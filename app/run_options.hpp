// What the options of a training run are to the libraries.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "app/options.hpp"
#include "net/optimizer.hpp"
#include "net/parameter_groups.hpp"
#include "net/schedule.hpp"

namespace dp {

[[nodiscard]] net::OptimizerOptions optimizer_options(const Options& options);
[[nodiscard]] net::GroupOptions group_options(const Options& options);
// scaling: the factor of --lr.
[[nodiscard]] net::ScheduleOptions schedule_options(const Options& options, double scaling,
                                                    std::size_t steps_per_epoch);

// The names in a list with commas; empty ones are left out.
[[nodiscard]] std::vector<std::string> names_in(const std::string& list);

}  // namespace dp
