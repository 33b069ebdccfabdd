#include "kernels/base/setting_error.hpp"

namespace dp {

SettingError::SettingError(Setting refused, std::string_view value, std::string_view why,
                           ErrorKind kind, Setting remedy)
    : Error(kind, fmt::format("{} {}: {}", refused.word, value, why)),
      refused_(refused),
      remedy_(remedy),
      complaint_(fmt::format("{}: {}", value, why)) {}

SettingError::SettingError(ErrorKind kind, std::string_view message, Setting remedy)
    : Error(kind, std::string(message)), remedy_(remedy), complaint_(message) {}

}  // namespace dp
