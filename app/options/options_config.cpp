#include "app/options/options_config.hpp"

#include <algorithm>
#include <string_view>

#include "app/options/options_values.hpp"
#include "app/options/text_file.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

bool is_quoted(std::string_view text) {
  return text.size() >= 2 && text.front() == '"' && text.back() == '"';
}

// Cuts a comment off: from a # at the start or after a blank, outside of quotes.
std::string_view without_comment(std::string_view line) {
  bool is_in_quotes = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') is_in_quotes = !is_in_quotes;
    const bool is_start = i == 0 || kBlanks.find(line[i - 1]) != std::string_view::npos;
    if (!is_in_quotes && is_start && line[i] == '#') return line.substr(0, i);
  }
  return line;
}

}  // namespace

std::vector<ConfigLine> parse_config_lines(const std::string& text, const std::string& source) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw_error(ErrorKind::usage, "{}: is written in UTF-16; save it as UTF-8", source);
  }
  std::vector<ConfigLine> lines;
  std::size_t number = 0;
  // Some editors begin a file with a mark that it is UTF-8.
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const std::size_t first = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  for (std::size_t begin = first; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line =
        trimmed(without_comment(trimmed(std::string_view(text).substr(begin, end - begin))));
    begin = end + 1;
    const std::string where = fmt::format("{}:{}", source, ++number);
    if (line.empty() || line.front() == ';') continue;
    if (line.front() == '[') {
      throw_error(ErrorKind::usage, "{}: {}: sections are not supported; write 'name = value'",
                  where, shown(line));
    }
    const std::size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals));
    if (equals == std::string_view::npos || name.empty()) {
      throw_error(ErrorKind::usage, "{}: {}: is not of the form 'name = value'", where,
                  shown(line));
    }
    std::string_view value = trimmed(line.substr(equals + 1));
    if (is_quoted(value)) value = value.substr(1, value.size() - 2);
    lines.push_back({std::string(name), std::string(value), where});
  }
  return lines;
}

std::string read_config_file(const std::string& path) {
  // No configuration is this long. A longer file is another kind of file, or a device without an
  // end.
  constexpr std::size_t kMostBytes = 1 << 20;
  return read_text_file("--config", path, kMostBytes, "a configuration");
}

std::string config_value(const std::string& value) {
  const bool is_plain =
      trimmed(value) == value && !value.empty() && value.find_first_of("#\"") == std::string::npos;
  return is_plain ? value : fmt::format("\"{}\"", value);
}

}  // namespace dp
