// Options of earlier versions that are keys of another option today: --muon-lr 0.24 is
// --optimizer muon:lr=0.24. One table has them all. A command line or file that gives one is
// refused by a sentence with its replacement; what a checkpoint has of them is translated.
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

// Throws Error(usage) for the first removed option among `given`, with all that belongs into its
// replacement: "--lr-gamma 0.2: write --lr-schedule step:gamma=0.2". Others are ignored.
void refuse_removed(const NamedValues& given);

// Options of an earlier version, resolved, under today's names.
[[nodiscard]] std::map<std::string, std::string> with_keys(
    std::map<std::string, std::string> options);

// A value of an option with keys, as the log has it, but with `key` at its default.
[[nodiscard]] std::string without_key(const std::string& option, const std::string& value,
                                      const std::string& key);

}  // namespace dp
