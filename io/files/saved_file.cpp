#include "io/files/saved_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

[[noreturn]] void throw_reason(int reason) { throw Error(ErrorKind::data, std::strerror(reason)); }

}  // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : number_(std::exchange(other.number_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

void FileDescriptor::close() {
  const int number = std::exchange(number_, -1);
  if (number >= 0 && ::close(number) != 0) throw_reason(errno);
}

FileDescriptor open_file(const std::string& path, int flags, unsigned mode) {
  const int number = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (number < 0) throw_reason(errno);
  return FileDescriptor(number);
}

FileDescriptor open_new_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_reason(errno);
  return open_file(path, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR, 0666);
}

void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, std::uint64_t at) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_reason(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    at += static_cast<std::uint64_t>(written);
  }
}

void sync_file(const FileDescriptor& file) {
  while (::fsync(file.get()) != 0) {
    if (errno != EINTR) throw_reason(errno);
  }
}

void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const FileDescriptor opened(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A folder that is writable but not readable cannot be synced. This is not an error.
  if (!opened.is_open() && errno == EACCES) return;
  if (!opened.is_open()) throw_reason(errno);
  if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EINTR) {
    throw_reason(errno);
  }
}

bool names_file(const std::string& path, const FileDescriptor& file) {
  struct stat named {
  }, opened{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(file.get(), &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

}  // namespace dp
