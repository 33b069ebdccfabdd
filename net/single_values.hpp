// Batch normalisation of a map of 1x1 has one value per channel and image. Over one image its
// output is a constant, which neither depends on the image nor has a gradient.
#pragma once

#include <string>
#include <vector>

#include "net/graph.hpp"

namespace dp::net {

// The layers of batch normalisation with such maps, by name, in the order of execution.
[[nodiscard]] std::vector<std::string> norms_of_single_values(const Graph& graph);

}  // namespace dp::net
