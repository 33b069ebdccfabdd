#include "io/files/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Calls work(). If work() throws, puts the path and the failed operation in front of the message.
template <class Work>
auto named(const std::string& path, const char* what, Work work) {
  try {
    return work();
  } catch (const Error& error) {
    throw_error(ErrorKind::data, "{}: {}: {}", path, what, error.what());
  }
}

void write_to_disk(const std::string& path, std::span<const std::byte> bytes) {
  FileDescriptor file = named(path, "cannot be created", [&] { return open_new_file(path); });
  named(path, "cannot be written", [&] {
    write_all(file, bytes, 0);
    sync_file(file);
    file.close();
  });
}

}  // namespace

void write_whole_file(const std::string& path, const std::string& part,
                      std::span<const std::byte> bytes) {
  try {
    write_to_disk(part, bytes);
    rename_durably(part, path);
  } catch (...) {
    ::unlink(part.c_str());
    throw;
  }
}

void rename_durably(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw_error(ErrorKind::data, "{}: cannot be created: {}", to, std::strerror(errno));
  }
  named(to, "its folder cannot be written", [&] { sync_folder_of(to); });
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  file_ = named(path_, "cannot be opened",
                [&] { return open_file(path_, O_RDONLY | O_NONBLOCK | O_NOCTTY); });
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) {
    throw_error(ErrorKind::data, "{}: cannot be read: {}", path_, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) throw_error(ErrorKind::data, "{}: is not a regular file", path_);
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read_up_to(std::size_t size, std::vector<std::byte>& bytes) {
  std::size_t at = bytes.size();
  if (at >= size) return;
  try {
    bytes.resize(size);
  } catch (const std::exception&) {  // bad_alloc, length_error
    throw_error(ErrorKind::data, "{}: cannot be read: there is no memory for its {} bytes", path_,
                size);
  }
  while (at < size) {
    const ssize_t count = ::read(file_.get(), bytes.data() + at, size - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw_error(ErrorKind::data, "{}: cannot be read: {}", path_, std::strerror(errno));
    }
    if (count == 0) break;  // the file was shortened
    at += static_cast<std::size_t>(count);
  }
  bytes.resize(at);
}

std::vector<std::byte> read_whole_file(const std::string& path, std::optional<std::uint64_t> size) {
  InputFile file(path);
  if (size && file.size() != *size) {
    throw_error(ErrorKind::data, "{}: has {} bytes instead of {}", path, file.size(), *size);
  }
  std::vector<std::byte> bytes;
  file.read_up_to(file.size(), bytes);
  return bytes;
}

bool is_missing(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) != 0 && errno == ENOENT;
}

}  // namespace dp
