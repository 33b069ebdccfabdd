// Files that are there whole or not at all, even if the program is killed or the power fails.
//
// A file is written under another name, brought to the disk (fsync), renamed, and then its folder
// is brought to the disk, too. Failures are Error(data) "PATH: reason"; the file that had the name
// before is then as it was.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace dp {

// Writes `bytes` to `path`, and meanwhile to `part` in the same folder. Both are replaced if they
// exist.
void write_whole_file(const std::string& path, const std::string& part,
                      std::span<const std::byte> bytes);

// Renames a file within its folder, which is then brought to the disk.
void rename_durably(const std::string& from, const std::string& to);

[[nodiscard]] std::vector<std::byte> read_whole_file(const std::string& path);

}  // namespace dp
