// The commands of scripts that come with the program, as users must type them.
#pragma once

#include <string>
#include <string_view>

namespace dp {

// The command that runs a script of experiments/, as messages show it. If the program is installed,
// the command is a link beside the program: "dptrain-get-cifar" for "get_cifar.sh". If not, the
// command is the path in the source tree, "experiments/get_cifar.sh".
[[nodiscard]] std::string shipped_script(std::string_view name);

}  // namespace dp
