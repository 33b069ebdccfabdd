// Options of earlier versions that have become keys of another option: --muon-lr 0.24 is now
// --optimizer muon:lr=0.24. One table lists them all. On a command line or in a file, a removed
// option is refused with a sentence that names its replacement. In a checkpoint it is translated.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dp {

// Names without dashes, and values.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

// Whether an option of that name was removed.
[[nodiscard]] bool is_removed(std::string_view name);

// Throws Error(usage) for the first removed option in `given`. The message says what to write
// instead: "--lr-gamma 0.2: write --lr-schedule step:gamma=0.2". This text also includes the other
// given options that have become keys of the same option. Options that were not removed are
// ignored.
void refuse_removed(const NamedValues& given);

// Translates the resolved options of an earlier version to today's names.
[[nodiscard]] std::map<std::string, std::string> with_keys(
    std::map<std::string, std::string> options);

// The value of an option with keys, as the log has it, after `key` is set to its default.
[[nodiscard]] std::string without_key(const std::string& option, const std::string& value,
                                      const std::string& key);

}  // namespace dp
