// What a library calls a setting, said by the name of dptrain's option.
#pragma once

#include <string_view>
#include <utility>

#include "kernels/base/setting_error.hpp"

namespace dp {

// "--compress" for "codec"; the setting's own name where no option sets it.
[[nodiscard]] constexpr std::string_view option_of_setting(std::string_view setting) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"codec", "--compress"},
      {"exact tensors", "--compress-exclude"},
      {"topology", "--topology"},
      {"exchange path", "--gpu-exchange"},
      {"model", "--model"}};
  for (const auto& [known, option] : kNames) {
    if (setting == known) return option;
  }
  return setting;
}

// Runs f. A SettingError of a library's becomes Error(usage) "--option value: why".
template <class F>
void with_option_names(F f) {
  try {
    f();
  } catch (const SettingError& error) {
    throw_error(error.kind(), "{} {}", option_of_setting(error.setting()), error.complaint());
  }
}

}  // namespace dp
