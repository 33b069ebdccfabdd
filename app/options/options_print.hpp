// The parts of --help: options of a table and lists of names, in lines of at most 80 columns.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/options/options_row.hpp"

namespace dp {

// Names and texts.
using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// Appends the groups of a table with their options: name, placeholder, help, range and default. The
// default is the current value of the field.
void append_options(std::string& out, const OptionTable& table);

// Appends a title and the entries below it, or nothing if there are no entries.
void append_entries(std::string& out, const std::string& title, const NamedTexts& entries);

// The text without the blanks that wrapping leaves at the ends of lines.
[[nodiscard]] std::string without_trailing_blanks(const std::string& text);

}  // namespace dp
