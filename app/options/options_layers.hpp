// Where the value of an option comes from; the higher wins where two given things contradict each
// other.
#pragma once

#include <functional>
#include <string>

namespace dp {

enum class Layer { preset, recipe, config, command_line };

using LayerOf = std::function<Layer(const std::string& option)>;

}  // namespace dp
