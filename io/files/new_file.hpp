// Creates the files that a run writes. Each gets a name that no file has yet, so nothing is
// overwritten.
//
// The functions throw SettingError(data) "SETTING PATH: ..." if the file exists or the system
// cannot create it. SETTING is the option that the path comes from.
#pragma once

#include <string>

#include "kernels/base/setting_error.hpp"

namespace dp {

// Checks that the file can be created. Call it before long work that ends with creating the file.
void check_new_file(Setting setting, const std::string& path);

// Creates an empty file at `path`. The check for an existing file and the creation are one step, so
// two runs never get the same file, even on two hosts that share a disk.
void create_new_file(Setting setting, const std::string& path);

// Creates an empty file under the first free name of STEM.EXTENSION, STEM-2.EXTENSION,
// STEM-3.EXTENSION, ... and returns that name.
[[nodiscard]] std::string create_fresh_file(Setting setting, const std::string& stem,
                                            const std::string& extension);

// Renames the file `part` to `path`, which must not exist.
void rename_to_new_file(Setting setting, const std::string& part, const std::string& path);

// If the file exists, renames it to the first free name of STEM-2.EXTENSION, ... and returns that
// name; otherwise returns an empty text.
std::string move_aside(Setting setting, const std::string& path);

// Whether two paths name the same file. The file need not exist yet. The paths may differ by "."
// and "..", or by links to folders. Never throws.
[[nodiscard]] bool is_same_file(const std::string& one, const std::string& other);

[[noreturn]] void throw_file_exists(Setting setting, const std::string& path);
[[noreturn]] void throw_cannot_create(Setting setting, const std::string& path, int error);

}  // namespace dp
