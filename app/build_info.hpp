// What this program is: for the log, and for the comparison of ranks before the first step.
#pragma once

#include <string>

namespace dp {

// "9880b64c1f2a", with "-dirty" after uncommitted changes; "unknown" without git.
[[nodiscard]] std::string git_revision();

// 16 hexadecimal digits that differ between two programs which were not built from the same sources
// by the same compiler: from the linker's build id or, without it, from the bytes of the program.
[[nodiscard]] std::string build_id();

}  // namespace dp
