// Operations for writing files safely: a kill, a full disk or a loss of power must never leave half
// of a file. whole_file.hpp combines these operations into functions that write a whole file. The
// run log, which grows, calls them directly.
//
// The functions throw Error(data) with the system's reason, such as "No space left on device". No
// function uses the C library's streams, because their buffers would hide which write failed.
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

// open() with O_CLOEXEC added to `flags`.
[[nodiscard]] FileDescriptor open_file(const std::string& path, int flags, unsigned mode = 0);

// Creates an empty file in place of any file of this name, and opens it for reading and writing. A
// link of this name is removed; its target stays as it is.
[[nodiscard]] FileDescriptor open_new_file(const std::string& path);

// Writes all bytes at offset `at` of the file.
void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, std::uint64_t at);

// Waits until the file's contents are on the disk.
void sync_file(const FileDescriptor& file);

// Waits until the folder of `path` is on the disk, so that created, renamed and removed names
// survive a loss of power. If the file system cannot sync a folder, this is not an error.
void sync_folder_of(const std::string& path);

// Whether `path` still names this open file; false if no file has the name.
[[nodiscard]] bool names_file(const std::string& path, const FileDescriptor& file);

}  // namespace dp
