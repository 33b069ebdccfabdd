// The layers that the value of an option may come from. If two given values contradict each other,
// the higher layer wins.
#pragma once

#include <functional>
#include <string>

namespace dp {

enum class Layer { preset, recipe, config, command_line };

using LayerOf = std::function<Layer(const std::string& option)>;

}  // namespace dp
