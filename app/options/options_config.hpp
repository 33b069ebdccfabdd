// The form of the configuration file: INI lines "name = value" without sections. Lines may be
// empty. A comment begins with # or ; at the start of a line, or with # after a blank. A value in
// double quotes is taken literally. The text is UTF-8, with or without a byte-order mark.
#pragma once

#include <string>
#include <vector>

namespace dp {

struct ConfigLine {
  std::string name;
  std::string value;
  std::string where;  // "run.ini:3", for messages
};

// source: the file's name, for messages. Throws Error(usage), which names the line.
[[nodiscard]] std::vector<ConfigLine> parse_config_lines(const std::string& text,
                                                         const std::string& source);

// A file's content; throws Error(usage) "--config FILE: ..." if it cannot be read.
[[nodiscard]] std::string read_config_file(const std::string& path);

// The value as it stands in a configuration file, in quotes if necessary.
[[nodiscard]] std::string config_value(const std::string& value);

}  // namespace dp
