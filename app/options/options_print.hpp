// What --help is made of: options of a table and lists of names, in lines of at most 80 columns.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/options/options_row.hpp"

namespace dp {

// Names and texts.
using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// The groups of a table with their options: name, placeholder, help, range and default, which is
// what the fields hold now.
void append_options(std::string& out, const OptionTable& table);

// A title and the entries below it; nothing where there are none.
void append_entries(std::string& out, const std::string& title, const NamedTexts& entries);

// The text without blanks before a line's end, which wrapping leaves behind.
[[nodiscard]] std::string without_trailing_blanks(const std::string& text);

}  // namespace dp
