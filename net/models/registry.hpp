// All models by name. A new model is a function that returns a Graph and one row in registry.cpp.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "net/graph.hpp"

namespace dp::net {

// In the order of --help.
[[nodiscard]] std::vector<std::string> model_names();

// The images and classes that a model is made for.
struct ModelInput {
  ImageShape image;
  std::size_t classes;
};

// Throws Error(usage) for an unknown name, with a list of the known names, and for images that are
// too small for the network.
[[nodiscard]] Graph make_model(const std::string& name, const ModelInput& input);

}  // namespace dp::net
