// All models by name. A new model is a function that returns a Graph and one row in registry.cpp.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "net/graph.hpp"

namespace dp::net {

// In the order in which --help shows them.
[[nodiscard]] std::vector<std::string> model_names();

// Throws Error(usage) for an unknown name, naming the known ones.
[[nodiscard]] Graph make_model(const std::string& name, std::size_t classes);

}  // namespace dp::net
