#include "app/options/options_print.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace dp {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kTextColumn = 26;

// Appends `text` in lines of at most kWidth. The first line continues `out` at `column`; further
// lines are indented to kTextColumn. A word that is longer than a line gets a line of its own.
void append_wrapped(std::string& out, std::size_t column, const std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::size_t word = end - begin;
    if (column + word > kWidth && column > kTextColumn) {
      out += '\n' + std::string(kTextColumn, ' ');
      column = kTextColumn;
    }
    out += text.substr(begin, word);
    column += word;
    if (end < text.size() && column < kWidth) {
      out += ' ';
      ++column;
    }
    begin = end + 1;
  }
  out += '\n';
}

std::string description(const OptionRow& row) {
  std::string text = row.help;
  if (!row.range.empty()) text += fmt::format(" ({})", row.range);
  if (row.is_flag() || !row.is_setting) return text;
  const std::string preset = row.shown_default.empty() ? row.get() : row.shown_default;
  if (!preset.empty()) {
    text += fmt::format(" [{}", preset);
    if (!row.synthetic_default.empty())
      text += fmt::format("; synthetic: {}", row.synthetic_default);
    text += "]";
  }
  return text;
}

// A key stands below its option, further to the right.
void append_keys(std::string& out, const OptionRow& row) {
  for (const OptionRow& key : row.keys) {
    std::string head = fmt::format("    {}={}", key.name, key.placeholder);
    if (head.size() + 2 > kTextColumn) {
      out += head + '\n';
      head.clear();
    }
    head.resize(kTextColumn, ' ');
    std::string text = key.help;
    if (!key.names.empty()) text = fmt::format("{}: {}", fmt::join(key.names, ", "), text);
    if (!key.range.empty()) text += fmt::format(" ({})", key.range);
    const std::string& preset = key.shown_default.empty() ? key.preset : key.shown_default;
    if (!preset.empty()) text += fmt::format(" [{}]", preset);
    out += head;
    append_wrapped(out, kTextColumn, text);
  }
}

}  // namespace

void append_options(std::string& out, const OptionTable& table) {
  for (const OptionGroup& group : table) {
    out += fmt::format("\n{}\n", group.title);
    for (const OptionRow& row : group.rows) {
      std::string head = "  --" + row.name;
      if (!row.is_flag()) head += " " + row.placeholder;
      // At least two blanks between an option and its text; otherwise the text begins on the next
      // line.
      if (head.size() + 2 > kTextColumn) {
        out += head + '\n';
        head.clear();
      }
      head.resize(kTextColumn, ' ');
      out += head;
      append_wrapped(out, kTextColumn, description(row));
      append_keys(out, row);
    }
  }
}

void append_entries(std::string& out, const std::string& title, const NamedTexts& entries) {
  if (entries.empty()) return;
  out += fmt::format("\n{}\n", title);
  for (const auto& [name, text] : entries) {
    std::string head = "  " + name;
    head.resize(kTextColumn, ' ');
    out += head;
    append_wrapped(out, kTextColumn, text);
  }
}

std::string without_trailing_blanks(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') {
      while (!result.empty() && result.back() == ' ') result.pop_back();
    }
    result += c;
  }
  return result;
}

}  // namespace dp
