#include "io/files/new_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace dp {
namespace {

namespace fs = std::filesystem;

// Creates an empty file. Returns 0, or the system's error number if that fails.
int try_to_create(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno;
  ::close(descriptor);
  return 0;
}

}  // namespace

void throw_file_exists(Setting setting, const std::string& path) {
  throw SettingError(setting, path,
                     "exists already and is not overwritten; give another name or move it away",
                     ErrorKind::data);
}

void throw_cannot_create(Setting setting, const std::string& path, int error) {
  if (error == EEXIST) throw_file_exists(setting, path);
  throw SettingError(setting, path, fmt::format("cannot be created: {}", std::strerror(error)),
                     ErrorKind::data);
}

void check_new_file(Setting setting, const std::string& path) {
  struct stat ignored {};
  if (::lstat(path.c_str(), &ignored) == 0) throw_file_exists(setting, path);
  if (errno != ENOENT) throw_cannot_create(setting, path, errno);
  const std::string folder = fs::path(path).parent_path().string();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
    throw_cannot_create(setting, path, errno);
  }
}

void create_new_file(Setting setting, const std::string& path) {
  if (const int error = try_to_create(path); error != 0) throw_cannot_create(setting, path, error);
}

std::string create_fresh_file(Setting setting, const std::string& stem,
                              const std::string& extension) {
  constexpr int kMostNames = 10'000;  // far more runs than can begin within a second
  std::string path = stem + "." + extension;
  for (int n = 2;; ++n) {
    const int error = try_to_create(path);
    if (error == 0) return path;
    if (error != EEXIST || n > kMostNames) throw_cannot_create(setting, path, error);
    path = fmt::format("{}-{}.{}", stem, n, extension);
  }
}

void rename_to_new_file(Setting setting, const std::string& part, const std::string& path) {
  if (::renameat2(AT_FDCWD, part.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) throw_cannot_create(setting, path, errno);
  // Some file systems, such as NFS, cannot rename without overwriting. Most can give a file a
  // second name (a hard link), which fails if the name exists.
  if (::link(part.c_str(), path.c_str()) == 0) {
    ::unlink(part.c_str());
    return;
  }
  if (errno == EEXIST) throw_file_exists(setting, path);
  check_new_file(setting, path);
  if (std::rename(part.c_str(), path.c_str()) != 0) throw_cannot_create(setting, path, errno);
}

std::string move_aside(Setting setting, const std::string& path) {
  struct stat ignored {};
  if (::lstat(path.c_str(), &ignored) != 0) return {};
  const fs::path whole(path);
  const std::string extension = whole.extension().string();
  const std::string stem = (whole.parent_path() / whole.stem()).string();
  const std::string name =
      create_fresh_file(setting, stem, extension.empty() ? "old" : extension.substr(1));
  if (std::rename(path.c_str(), name.c_str()) != 0) throw_cannot_create(setting, name, errno);
  return name;
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code code;
  const auto place = [&](const std::string& path) {
    const fs::path whole = fs::absolute(path, code);
    return fs::weakly_canonical(whole.parent_path(), code) / whole.filename();
  };
  return place(one) == place(other) || fs::equivalent(one, other, code);
}

}  // namespace dp
