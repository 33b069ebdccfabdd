// The commands of scripts that come with the program, as users must type them.
#pragma once

#include <string>
#include <string_view>

namespace dp {

// The command of a script of experiments/, for messages. In an installed program it is the link
// beside the program: "dptrain-get-cifar" for "get_cifar.sh". Elsewhere it is the path in the
// source tree: "experiments/get_cifar.sh".
[[nodiscard]] std::string shipped_script(std::string_view name);

}  // namespace dp
