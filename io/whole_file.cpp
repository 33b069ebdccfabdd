#include "io/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw_error(ErrorKind::data, "{}: {}: {}", path, what, std::strerror(errno));
}

// A descriptor that is closed in the end, in which errors no longer count.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : number_(::open(path.c_str(), flags, 0666)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] bool close() {
    const int number = number_;
    number_ = -1;
    return ::close(number) == 0;
  }

 private:
  int number_;
};

void write_to_disk(const std::string& path, std::span<const std::byte> bytes) {
  Descriptor file(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC);
  if (file.get() < 0) fail(path, "cannot be created");
  // In pieces, because one call writes 2 GiB at most.
  constexpr std::size_t kPiece = 64u << 20;
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), std::min(kPiece, bytes.size()));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0) fail(path, "cannot be written");
  if (!file.close()) fail(path, "cannot be written");
}

void sync_folder_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor.get() < 0) fail(folder, "cannot be opened");
  // Some network file systems cannot do it for folders.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) fail(folder, "cannot be written");
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
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(to, "cannot be created");
  sync_folder_of(to);
}

std::vector<std::byte> read_whole_file(const std::string& path) {
  const Descriptor file(path, O_RDONLY | O_CLOEXEC);
  if (file.get() < 0) fail(path, "cannot be opened");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, "cannot be read");
  if (!S_ISREG(status.st_mode)) throw_error(ErrorKind::data, "{}: is not a file", path);
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, "cannot be read");
    if (count == 0) break;  // it became shorter
    at += static_cast<std::size_t>(count);
  }
  bytes.resize(at);
  return bytes;
}

}  // namespace dp
