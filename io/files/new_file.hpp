// The files that a run writes. Each gets a name that no file has yet, so nothing is overwritten.
//
// The functions throw SettingError(data) "SETTING PATH: ..." if the file cannot be made, because it
// exists or for a reason that the system gives. The setting is the one that the path comes from.
#pragma once

#include <string>

#include "kernels/base/setting_error.hpp"

namespace dp {

// Checks that a file could be made; for use before the work that comes first.
void check_new_file(Setting setting, const std::string& path);

// Makes an empty file at `path`. The check that there is none and the creation are one step, so
// that two runs never get the same file, even on two hosts that share a disk.
void create_new_file(Setting setting, const std::string& path);

// Does the same with the first free name of STEM.EXTENSION, STEM-2.EXTENSION, STEM-3.EXTENSION, ...
// and returns that name.
[[nodiscard]] std::string create_fresh_file(Setting setting, const std::string& stem,
                                            const std::string& extension);

// Renames the file `part` to `path`, which must not exist.
void rename_to_new_file(Setting setting, const std::string& part, const std::string& path);

// If the file exists, renames it to the first free name of STEM-2.EXTENSION, ...; returns that
// name, or nothing.
std::string move_aside(Setting setting, const std::string& path);

// Whether two paths name the same file, which need not exist yet: they may differ by "." and "..",
// or by links to folders. Never throws.
[[nodiscard]] bool is_same_file(const std::string& one, const std::string& other);

[[noreturn]] void throw_file_exists(Setting setting, const std::string& path);
[[noreturn]] void throw_cannot_create(Setting setting, const std::string& path, int error);

}  // namespace dp
