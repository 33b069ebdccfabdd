// When, within a backward pass, the gradient of each parameter becomes final: by the arithmetic of
// the layers, without computing anything.
#pragma once

#include <vector>

#include "net/graph.hpp"
#include "net/parameters.hpp"

namespace dp::net {

// By the order of Parameters::tensors(): the fraction of the backward pass that is over when the
// tensor is final. A layer's work is that of its matrices: their elements times the places of its
// output where they are applied. The parameters are those of a network of this graph.
[[nodiscard]] std::vector<double> backward_fractions(const Graph& graph,
                                                     const Parameters& parameters);

}  // namespace dp::net
