// Files that a run writes, each under a name that no file has yet: nothing is overwritten.
#pragma once

#include <string>

namespace dp {

// Throws Error(data) "OPTION PATH: ..." where a file could not be made at `path` now: because there
// is one, or for a reason of the system's. For use before the work that comes ahead of its making.
void check_new_file(const std::string& option, const std::string& path);

[[noreturn]] void throw_file_exists(const std::string& option, const std::string& path);
[[noreturn]] void throw_cannot_create(const std::string& option, const std::string& path,
                                      int error);

}  // namespace dp
