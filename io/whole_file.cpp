#include "io/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "io/saved_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

// Puts path and place before the system's reason.
template <class Work>
auto named(const std::string& path, const char* what, Work work) {
  try {
    return work();
  } catch (const Error& error) {
    throw_error(ErrorKind::data, "{}: {}: {}", path, what, error.what());
  }
}

void write_to_disk(const std::string& path, std::span<const std::byte> bytes) {
  FileDescriptor file = named(path, "cannot be created",
                              [&] { return open_file(path, O_CREAT | O_TRUNC | O_WRONLY, 0666); });
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

std::vector<std::byte> read_whole_file(const std::string& path) {
  const FileDescriptor file =
      named(path, "cannot be opened", [&] { return open_file(path, O_RDONLY); });
  const auto fail = [&] {
    throw_error(ErrorKind::data, "{}: cannot be read: {}", path, std::strerror(errno));
  };
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail();
  if (!S_ISREG(status.st_mode)) throw_error(ErrorKind::data, "{}: is not a file", path);
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail();
    if (count == 0) break;  // it became shorter
    at += static_cast<std::size_t>(count);
  }
  bytes.resize(at);
  return bytes;
}

}  // namespace dp
