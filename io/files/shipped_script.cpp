#include "io/files/shipped_script.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace dp {
namespace {

// The name of the link that kernels/cmake/Packages.cmake creates for the script `name`.
std::string installed_name(std::string_view name) {
  std::string command = "dptrain-" + std::string(name.substr(0, name.rfind('.')));
  std::ranges::replace(command, '_', '-');
  return command;
}

}  // namespace

std::string shipped_script(std::string_view name) {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  std::string installed = installed_name(name);
  if (!program.empty() && std::filesystem::exists(program.parent_path() / installed, ignored)) {
    return installed;
  }
  return "experiments/" + std::string(name);
}

}  // namespace dp
