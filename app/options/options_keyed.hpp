// Options whose value is a name with keys, NAME[:key=value,...], as --compress has it:
//
//   --optimizer muon:lr=0.24,momentum=0.6
//
// Each key is a row of its own, with range, default and help; `names` of that row lists the names
// that have the key. A value replaces everything that a recipe or a file gave before: keys that the
// value does not give are at their defaults.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/options/options.hpp"
#include "app/options/options_row.hpp"

namespace dp {

// The name and the keys of a value. If only keys are given, the name is the row's implied name.
struct KeyedValue {
  std::string name;
  std::vector<std::pair<std::string, std::string>> keys;
};

// Splits a value of `row`. Throws Error(usage) for a part that is not key=value, an unknown key, a
// key of another name, and a key that is given twice.
[[nodiscard]] KeyedValue split_keyed(const OptionRow& row, std::string_view text);

// The name of a value, without its keys.
[[nodiscard]] std::string name_of_keyed(std::string_view text);

// An option whose value is NAME:key=value,... `head` reads and writes NAME; `presets` are the keys'
// defaults. With an implied name, NAME may be left out: --plan ranks=4 means --plan on:ranks=4.
[[nodiscard]] OptionRow keyed_row(OptionRow head, std::vector<OptionRow> keys,
                                  const std::vector<std::string>& presets,
                                  const std::string& implied_name = "");

// The same, with the defaults that the keys have in fresh Options.
template <class KeysOf>
[[nodiscard]] OptionRow keyed_row(OptionRow head, KeysOf keys_of, Options& options,
                                  const std::string& implied_name = "") {
  Options fresh;
  std::vector<std::string> presets;
  for (const OptionRow& key : keys_of(fresh)) presets.push_back(key.get());
  return keyed_row(std::move(head), keys_of(options), presets, implied_name);
}

// A key of a keyed option, for some of its names; empty `names`: for all.
[[nodiscard]] OptionRow key_of(std::vector<std::string> names, OptionRow row);

}  // namespace dp
