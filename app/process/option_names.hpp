// Translates the names that libraries use for settings to the names of a program's options.
//
// A library reports "codec q7: unknown codec"; dptrain's users read "--compress q7: unknown codec".
// If a message ends with advice, the name of the option to use is added: "... or raise the timeout,
// now 60 s (option --comm-timeout)".
#pragma once

#include <span>
#include <string_view>

#include "kernels/base/setting_error.hpp"

namespace dp {

// The options of a program.
struct OptionNames {
  struct Row {
    std::string_view word, option;  // "codec", "--compress"
  };
  std::span<const Row> rows;
  std::string_view for_memory;  // "option --batch-size or --model": what to change if it is full

  // Empty if no option sets this setting; messages then keep the library's name.
  [[nodiscard]] std::string_view option_of(Setting setting) const;
};

extern const OptionNames kDptrainNames, kDpbenchNames, kPackNames;

// Rethrows the exception that is being handled, with option names in its message. Call it only
// inside a catch block.
[[noreturn]] void rethrow_with_option_names(const OptionNames& names);

// Runs f. Exceptions of f get the names of options.
template <class F>
auto with_option_names(const OptionNames& names, F f) {
  try {
    return f();
  } catch (...) {
    rethrow_with_option_names(names);
  }
}

}  // namespace dp
