// The steps of writing files so that neither a kill, a full disk nor a loss of power leaves half of
// one. whole_file.hpp does them for a file that is written at once; the run log does them itself.
//
// The functions throw Error(data) with the system's reason, such as "No space left on device". None
// uses the C library's streams, whose buffers would hide where a write failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dp {

// An open file, closed by the destructor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor();

  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }
  void close();  // now; some file systems report a failure to write only here

 private:
  int number_ = -1;
};

// Opens with O_CLOEXEC; `flags` and `mode` are those of open().
[[nodiscard]] FileDescriptor open_file(const std::string& path, int flags, unsigned mode = 0);

// Makes an empty file in place of what has this name, and opens it to read and write. A link that
// someone put there is removed; what it leads to stays as it is.
[[nodiscard]] FileDescriptor open_new_file(const std::string& path);

// Writes all bytes at that place of the file.
void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, std::uint64_t at);

// Returns when the file's contents are on the disk.
void sync_file(const FileDescriptor& file);

// Returns when the names in the folder of `path` are on the disk: what was made, renamed or removed
// there. File systems that cannot tell are taken at their word.
void sync_folder_of(const std::string& path);

// Whether `path` still names this open file; false if it names nothing.
[[nodiscard]] bool names_file(const std::string& path, const FileDescriptor& file);

}  // namespace dp
