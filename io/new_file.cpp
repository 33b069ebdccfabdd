#include "io/new_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/base/error.hpp"

namespace dp {

void throw_file_exists(const std::string& option, const std::string& path) {
  throw_error(ErrorKind::data,
              "{} {}: exists already and is not overwritten; give another name or move it away",
              option, path);
}

void throw_cannot_create(const std::string& option, const std::string& path, int error) {
  throw_error(ErrorKind::data, "{} {}: cannot be created: {}", option, path, std::strerror(error));
}

void check_new_file(const std::string& option, const std::string& path) {
  struct stat ignored {};
  if (::lstat(path.c_str(), &ignored) == 0) throw_file_exists(option, path);
  if (errno != ENOENT) throw_cannot_create(option, path, errno);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
    throw_cannot_create(option, path, errno);
  }
}

}  // namespace dp
