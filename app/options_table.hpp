// The table of dptrain's options: one row each. A new option is a field of Options and a row here;
// parsing, --help, --print-config, the configuration file and the log follow.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "app/options.hpp"

namespace dp {

struct OptionRow {
  std::string name;         // without dashes
  std::string placeholder;  // "N", "on|off"; empty for a flag, which has no value
  std::string help;         // a phrase without a full stop
  std::string allowed;      // completes "must be ..."
  std::string range;        // for --help: "1 to 64"; empty where help or placeholder say it
  // The default where the data set is synthetic, if it is another one.
  std::string synthetic_default;
  // Whether it is a setting: part of a configuration file and of the log. Otherwise it is about
  // this call of the program (--help, --config).
  bool is_setting = true;
  // Assigns the field from text; throws Error(usage).
  std::function<void(Options&, std::string_view)> set;
  // The field's text; empty where it is not set.
  std::function<std::string(const Options&)> get;

  [[nodiscard]] bool is_flag() const { return placeholder.empty(); }
};

struct OptionGroup {
  std::string title;
  std::vector<OptionRow> rows;
};

[[nodiscard]] std::vector<OptionGroup> option_table(const OptionContext& context);

}  // namespace dp
