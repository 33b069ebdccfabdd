// Files that are there whole or not at all, even if the program is killed or the power fails.
//
// A file is written under another name, brought to the disk (fsync), renamed, and then its folder
// is brought to the disk, too. Failures are Error(data) "PATH: reason"; the file that had the name
// before is then as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/files/saved_file.hpp"

namespace dp {

// Writes `bytes` to `path`, and meanwhile to `part` in the same folder. Both are replaced if they
// exist.
void write_whole_file(const std::string& path, const std::string& part,
                      std::span<const std::byte> bytes);

// Renames a file within its folder, which is then brought to the disk.
void rename_durably(const std::string& from, const std::string& to);

// A regular file that is read from its front. The constructor refuses anything else, such as a pipe
// or a folder, and does not wait for it. Failures are Error(data) "PATH: reason".
class InputFile {
 public:
  explicit InputFile(std::string path);

  [[nodiscard]] std::uint64_t size() const { return size_; }
  // Appends the next bytes to `bytes` until it has `size` of them. At the end of the file it has
  // fewer. Memory that is not there is a failure, too.
  void read_up_to(std::size_t size, std::vector<std::byte>& bytes);

 private:
  std::string path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

// With `size`, a file of any other size is refused before memory is taken for it.
[[nodiscard]] std::vector<std::byte> read_whole_file(const std::string& path,
                                                     std::optional<std::uint64_t> size = {});

// Whether nothing has that name. False if that cannot be found out.
[[nodiscard]] bool is_missing(const std::string& path);

}  // namespace dp
