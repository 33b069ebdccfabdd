// Scripts that come with the program, by the names under which users find them.
#pragma once

#include <string>
#include <string_view>

namespace dp {

// The command of a script of experiments/, for messages. Where the program is installed it is the
// link beside the program: "dptrain-get-cifar" for "get_cifar.sh"; elsewhere the script's path in
// the source tree: "experiments/get_cifar.sh".
[[nodiscard]] std::string shipped_script(std::string_view name);

}  // namespace dp
