// Finds batch normalisation of 1x1 feature maps, which has one value per channel and image. For a
// batch of one image its output is a constant: it does not depend on the image and has no gradient.
#pragma once

#include <string>
#include <vector>

#include "net/graph.hpp"

namespace dp::net {

// The names of the batch normalisation layers with 1x1 maps, in the order of execution.
[[nodiscard]] std::vector<std::string> norms_of_single_values(const Graph& graph);

}  // namespace dp::net
