// Numbers and tables as text, for the console of every program.
//
// Units are decimal (1 MB = 10^6 bytes). A value that was not measured (NaN) is shown as "-". The
// width of a text is the number of its UTF-8 characters, not of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

[[nodiscard]] std::string format_bytes(double bytes);               // 812 B, 44.7 MB, 1.20 GB
[[nodiscard]] std::string format_bit_rate(double bit_per_s);        // 95.7 Mbit/s
[[nodiscard]] std::string format_seconds(double seconds);           // 35 us, 4.21 ms, 12.3 s
[[nodiscard]] std::string format_count(std::int64_t count);         // 11,173,962
[[nodiscard]] std::string format_percent(double fraction);          // 83.1 %
[[nodiscard]] std::string format_number(double value, int digits);  // `digits` decimals

// The number of characters of a UTF-8 text, each counted as one column wide.
[[nodiscard]] std::size_t text_columns(std::string_view text);

enum class Align { left, right };

struct TextTable {
  std::vector<std::string> header;             // may be empty: no header, no rule
  std::vector<std::vector<std::string>> rows;  // each as long as the header, or as the first row
  std::vector<Align> align = {};  // by column; the default is left for the first, right for others
};

// Formats a table: aligned columns with two blanks between them, a rule under the header, a newline
// after every row, and no blanks at the ends of lines. Each line begins with `indent` blanks.
[[nodiscard]] std::string format_table(const TextTable& table, std::size_t indent = 0);

}  // namespace dp
