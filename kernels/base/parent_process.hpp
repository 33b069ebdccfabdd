// Facts about processes, from /proc and the environment.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace dp {

// 0 if it cannot be found out.
[[nodiscard]] pid_t parent_of(pid_t process);

// The number that a text is, as in the variables of launchers; 0 if it is none.
[[nodiscard]] int whole_number(std::string_view text);

}  // namespace dp
