// What libraries call settings, told by the names of a program's options.
//
// A library says "codec q7: unknown codec"; dptrain's users read "--compress q7: unknown codec".
// Where a message ends with advice, the option that follows it is added: "... or raise the timeout,
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

  // Empty where no option sets it, so that the library's word stays.
  [[nodiscard]] std::string_view option_of(Setting setting) const;
};

extern const OptionNames kDptrainNames, kDpbenchNames, kPackNames;

// Throws the exception that is handled now with the names of options. Call only inside a catch
// block.
[[noreturn]] void rethrow_with_option_names(const OptionNames& names);

// Runs f; its exceptions are told with the names of options.
template <class F>
auto with_option_names(const OptionNames& names, F f) {
  try {
    return f();
  } catch (...) {
    rethrow_with_option_names(names);
  }
}

}  // namespace dp
