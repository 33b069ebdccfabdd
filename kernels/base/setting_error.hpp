// Errors about settings that the user chose.
//
// A library has its own names for settings ("codec", "timeout") and knows no program's options. Its
// messages use these names, and the error records which settings it is about. The program replaces
// the library's names with those of its options (app/process/option_names.hpp).
#pragma once

#include <string>
#include <string_view>

#include "kernels/base/error.hpp"

namespace dp {

// A library's name for a setting, such as "exact tensors". tests/check_option_names.py checks that
// the program has an option for each of these names.
struct Setting {
  constexpr Setting() = default;
  constexpr explicit Setting(std::string_view literal) : word(literal) {}
  bool operator==(const Setting&) const = default;

  std::string_view word = {};  // empty: none
};

// OutOfMemory (error.hpp) does not need this class, because its remedies are always a smaller batch
// or model.
class SettingError : public Error {
 public:
  // A value is refused: what() is "codec q7: unknown codec; known: none, fp16". If `remedy` is set,
  // `why` ends with the advice to change that setting.
  SettingError(Setting refused, std::string_view value, std::string_view why,
               ErrorKind kind = ErrorKind::usage, Setting remedy = {});
  // An operation fails, and the message ends with the advice to change a setting.
  SettingError(ErrorKind kind, std::string_view message, Setting remedy);

  // The setting at the front of what(), if there is one.
  [[nodiscard]] Setting refused() const { return refused_; }
  [[nodiscard]] Setting remedy() const { return remedy_; }
  // what() without the name of the refused setting: "q7: unknown codec; known: none, fp16".
  [[nodiscard]] const std::string& complaint() const { return complaint_; }

 private:
  Setting refused_, remedy_;
  std::string complaint_;
};

}  // namespace dp
