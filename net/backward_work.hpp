// Estimates when, within a backward pass, each parameter's gradient becomes final. The estimate
// counts the layers' arithmetic and runs nothing.
#pragma once

#include <vector>

#include "net/graph.hpp"
#include "net/parameters.hpp"

namespace dp::net {

// For each tensor, in the order of Parameters::tensors(): the fraction of the backward pass that is
// over when its gradient is final. A layer's work is the number of elements of its matrices, times
// the number of output positions at which they are applied. `parameters` must belong to a network
// of this graph.
[[nodiscard]] std::vector<double> backward_fractions(const Graph& graph,
                                                     const Parameters& parameters);

}  // namespace dp::net
