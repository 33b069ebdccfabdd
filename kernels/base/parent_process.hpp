// Facts about processes, from /proc and the environment.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace dp {

// The parent of a process; 0 if unknown.
[[nodiscard]] pid_t parent_of(pid_t process);

// Parses a whole number, as in a launcher's environment variables; 0 if `text` is not one.
[[nodiscard]] int whole_number(std::string_view text);

}  // namespace dp
