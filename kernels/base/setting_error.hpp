// A setting with a value that is not allowed, told in the words of the library that refuses it. A
// program whose users know the setting by another name, such as an option's, says that name
// instead (app/option_names.hpp).
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/error.hpp"

namespace dp {

// what() is "SETTING VALUE: WHY", such as "codec q7: unknown codec; known: none, fp16".
class SettingError : public Error {
 public:
  SettingError(std::string_view setting, std::string_view value, std::string_view why)
      : Error(ErrorKind::usage, fmt::format("{} {}: {}", setting, value, why)),
        setting_(setting),
        complaint_(fmt::format("{}: {}", value, why)) {}

  [[nodiscard]] const std::string& setting() const { return setting_; }
  // "VALUE: WHY"
  [[nodiscard]] const std::string& complaint() const { return complaint_; }

 private:
  std::string setting_, complaint_;
};

}  // namespace dp
