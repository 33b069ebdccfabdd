// Files that a run writes, each under a name that no file has yet: nothing is overwritten.
//
// All of these throw Error(data) "OPTION PATH: ..." where the file cannot be made: because there is
// one, or for a reason of the system's.
#pragma once

#include <string>

namespace dp {

// For use before the work that comes ahead of the file's making.
void check_new_file(const std::string& option, const std::string& path);

// Makes an empty file at `path`, in one step with the check that there was none, so that two runs,
// also on two hosts of a shared disk, never get the same file.
void create_new_file(const std::string& option, const std::string& path);

// The same under the first free name of STEM.EXTENSION, STEM-2.EXTENSION, STEM-3.EXTENSION, ...;
// returns that name.
[[nodiscard]] std::string create_fresh_file(const std::string& option, const std::string& stem,
                                            const std::string& extension);

// Gives the file `part` the name `path`, which no file may have by then.
void rename_to_new_file(const std::string& option, const std::string& part,
                        const std::string& path);

// Whether two paths, at which there need not be a file yet, are spellings of the same one: through
// "." and "..", or through links to folders. Never throws.
[[nodiscard]] bool is_same_file(const std::string& one, const std::string& other);

[[noreturn]] void throw_file_exists(const std::string& option, const std::string& path);
[[noreturn]] void throw_cannot_create(const std::string& option, const std::string& path,
                                      int error);

}  // namespace dp
