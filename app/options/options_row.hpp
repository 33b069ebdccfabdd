// An option of a program: one row of its table, bound to the field that it sets. Parsing
// (options_words.hpp) and --help (options_print.hpp) need nothing else, so all programs read their
// options in the same way.
//
// The functions below make rows for the usual types. They capture fields by reference, so a field
// must outlive its row. Every set() throws Error(usage) "--name value: must be ...".
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/options/options_values.hpp"

namespace dp {

// The condition under which an option has a use: another option has one of certain values. If the
// condition is not met, the option has no value. If it is given nevertheless, it is refused, unless
// the other option comes from a higher layer (Builder in options.cpp).
struct OnlyWith {
  std::string option = {};               // without dashes; empty: the option always counts
  std::vector<std::string> values = {};  // names, if that option has keys; empty: all but `others`
  std::vector<std::string> others = {};
  std::string words = {};       // "--checkpoint DIR" in messages; empty: the option and its values
  bool may_be_default = false;  // the option is always set, and its default is always accepted
};

struct OptionRow {
  std::string name;         // without dashes
  std::string placeholder;  // "N", "on|off"; empty for a flag, which has no value
  std::string help;         // a phrase without a full stop
  std::string allowed;      // completes "must be ..."
  std::string range = {};   // for --help: "1 to 64"; empty if help or placeholder say it
  // Only for dptrain: the default for the synthetic data set, if it differs.
  std::string synthetic_default = {};
  // The default as --help shows it; empty: the field's value.
  std::string shown_default = {};
  // Whether the option is a setting. Configuration files and the log contain only settings. Options
  // that are not settings concern only this call of the program (--help, --config).
  bool is_setting = true;
  OnlyWith only_with = {};
  // For an option with keys (options_keyed.hpp): its keys, and the name if only keys are given.
  std::vector<OptionRow> keys = {};
  std::string implied_name = {};
  // True: keys that are not in `keys` are passed on to the parser of the name.
  bool has_more_keys = false;
  // True: the option may stand without a value and then has the value "on".
  bool has_optional_value = false;
  // The default of a key. For an option with a condition, bind_conditions() puts the field's value
  // here.
  std::string preset = {};
  // For a key: the names that accept it (empty: all), and whether its value has keys itself.
  std::vector<std::string> names = {};
  bool takes_keys = false;
  // Assigns the field from text; throws Error(usage).
  std::function<void(std::string_view)> set;
  // The field's text; empty if it is not set.
  std::function<std::string()> get;
  // With a condition: whether it holds (set by bind_conditions).
  std::function<bool()> has_use = nullptr;

  [[nodiscard]] bool is_flag() const { return placeholder.empty(); }
};

struct OptionGroup {
  std::string title;
  std::vector<OptionRow> rows;
  std::string topic = {};  // a word for --help TOPIC
};

using OptionTable = std::vector<OptionGroup>;

// The row with this condition.
[[nodiscard]] OptionRow only_with(OnlyWith condition, OptionRow row);

// Gives each row with a condition its has_use(). Without a use, the row's get() then returns an
// empty text.
void bind_conditions(OptionTable& table);

// The condition that a row without a use does not meet: "--optimizer sgd or muon, not adam".
// `value` is the value of the other option, here "adam".
[[nodiscard]] std::string need_of(const OnlyWith& condition, const std::string& value);

// Null if no option has that name.
[[nodiscard]] const OptionRow* find_option(const OptionTable& table, std::string_view name);

[[nodiscard]] OptionRow whole_row(std::string name, std::int64_t& field, WholeRange range,
                                  std::string help, std::string synthetic_default = "");
[[nodiscard]] OptionRow real_row(std::string name, double& field, RealRange range, std::string help,
                                 std::string synthetic_default = "");
[[nodiscard]] OptionRow on_off_row(std::string name, bool& field, std::string help);
// Any text.
[[nodiscard]] OptionRow text_row(std::string name, std::string& field, std::string placeholder,
                                 std::string allowed, std::string help);
// A value that `parse` reads. `parse` throws Error(usage) for wrong text, and keeps the text as
// `given`.
template <class Value>
[[nodiscard]] OptionRow parsed_row(std::string name, Value& field, Value (*parse)(std::string_view),
                                   std::string placeholder, std::string allowed, std::string help) {
  OptionRow row = text_row(std::move(name), field.given, std::move(placeholder), std::move(allowed),
                           std::move(help));
  row.set = [parse, &field](std::string_view text) { field = parse(text); };
  return row;
}
// One name from a list, which may have any length; messages say "unknown model; known: ...". With
// an empty list, any text is accepted.
[[nodiscard]] OptionRow name_row(std::string name, std::string& field, std::string kind,
                                 std::vector<std::string> known, std::string help);
// A bandwidth or "off" (parse_bit_rate).
[[nodiscard]] OptionRow rate_row(std::string name, BitRate& field, std::string help);
// A flag: the option has no value, and giving it sets the field.
[[nodiscard]] OptionRow flag_row(std::string name, bool& field, std::string help);
// A flag that concerns only this call of the program and is not allowed in a configuration file.
[[nodiscard]] OptionRow call_row(std::string name, std::string help, std::function<void()> set);

// `choices` name the enumerators 0, 1, 2, ...
template <class Enum>
[[nodiscard]] OptionRow choice_row(std::string name, Enum& field, std::vector<std::string> choices,
                                   std::string help, std::string synthetic_default = "") {
  const std::string option = "--" + name;
  return {.name = std::move(name),
          .placeholder = fmt::format("{}", fmt::join(choices, "|")),
          .help = std::move(help),
          .allowed = joined_choices(choices),
          .synthetic_default = std::move(synthetic_default),
          .set =
              [option, choices, &field](std::string_view text) {
                field = static_cast<Enum>(parse_choice(option, text, choices));
              },
          .get = [choices, &field] { return choices[static_cast<std::size_t>(field)]; }};
}

}  // namespace dp
