// Files that exist either whole or not at all, even if the program is killed or the power fails.
//
// A file is written under another name, synced to the disk (fsync) and renamed; then its folder is
// synced. Failures throw Error(data) "PATH: reason", and leave an earlier file of that name
// unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/files/saved_file.hpp"

namespace dp {

// Writes `bytes` to `path`, through the temporary file `part` in the same folder. Both are replaced
// if they exist.
void write_whole_file(const std::string& path, const std::string& part,
                      std::span<const std::byte> bytes);

// Renames a file within its folder, then syncs the folder to the disk.
void rename_durably(const std::string& from, const std::string& to);

// A regular file that is read from its front. The constructor refuses anything else, such as a
// folder or a pipe (it does not wait for the pipe's writer). Failures throw Error(data) "PATH:
// reason".
class InputFile {
 public:
  explicit InputFile(std::string path);

  [[nodiscard]] std::uint64_t size() const { return size_; }
  // Appends the next bytes of the file to `bytes`, until `bytes` has the size `size` or the file
  // ends. Running out of memory is a failure, too.
  void read_up_to(std::size_t size, std::vector<std::byte>& bytes);

 private:
  std::string path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

// Reads a whole file. If `size` is given, a file of another size is refused before memory is
// allocated.
[[nodiscard]] std::vector<std::byte> read_whole_file(const std::string& path,
                                                     std::optional<std::uint64_t> size = {});

// Whether no file has that name. False if the system cannot say.
[[nodiscard]] bool is_missing(const std::string& path);

}  // namespace dp
