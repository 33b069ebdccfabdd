#include "io/files/text_table.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

const std::string kUnknown = "-";

// Three significant digits; numbers above 100 have no decimals.
std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

// Formats a value with the largest prefix (k, M, G, ...) for which the shown number is at least 1.
std::string scaled(double value, const char* unit) {
  if (std::isnan(value)) return kUnknown;
  constexpr std::array<const char*, 6> kPrefixes{"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  // The limit is below 1000, because 999.5 would be shown as 1000.
  while (std::abs(value) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1'000;
    ++prefix;
  }
  if (prefix == 0) return fmt::format("{:.0f} {}", value, unit);
  return fmt::format("{} {}{}", three_digits(value), kPrefixes[prefix], unit);
}

}  // namespace

std::string format_bytes(double bytes) { return scaled(bytes, "B"); }
std::string format_bit_rate(double bit_per_s) { return scaled(bit_per_s, "bit/s"); }

std::string format_seconds(double seconds) {
  if (std::isnan(seconds)) return kUnknown;
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size < 0.9995e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (size < 0.9995) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds) + " s";
}

std::string format_count(std::int64_t count) {
  std::string digits = fmt::format("{}", count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) digits.insert(i -= 3, ",");
  return digits;
}

std::string format_percent(double fraction) {
  return std::isnan(fraction) ? kUnknown : fmt::format("{:.1f} %", fraction * 100);
}

std::string format_number(double value, int digits) {
  return std::isnan(value) ? kUnknown : fmt::format("{:.{}f}", value, digits);
}

std::size_t text_columns(std::string_view text) {
  // Bytes of the form 10xxxxxx continue a character and are not counted.
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string format_table(const TextTable& table, std::size_t indent) {
  const std::size_t columns = !table.header.empty() ? table.header.size()
                              : table.rows.empty()  ? 0
                                                    : table.rows[0].size();
  std::vector<std::size_t> widths(columns);
  const auto measure = [&](const std::vector<std::string>& row) {
    DP_ASSERT(row.size() == columns, "a row has {} cells, but the table has {} columns", row.size(),
              columns);
    for (std::size_t i = 0; i < columns; ++i) widths[i] = std::max(widths[i], text_columns(row[i]));
  };
  if (!table.header.empty()) measure(table.header);
  for (const auto& row : table.rows) measure(row);

  std::string text;
  const auto print = [&](const std::vector<std::string>& row) {
    std::string line(indent, ' ');
    for (std::size_t i = 0; i < columns; ++i) {
      if (i > 0) line += "  ";
      const Align align = i < table.align.size() ? table.align[i]
                          : i == 0               ? Align::left
                                                 : Align::right;
      const std::string blanks(widths[i] - text_columns(row[i]), ' ');
      line += align == Align::left ? row[i] + blanks : blanks + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  if (!table.header.empty()) {
    print(table.header);
    std::vector<std::string> rule;
    for (const std::size_t width : widths) rule.emplace_back(width, '-');
    print(rule);
  }
  for (const auto& row : table.rows) print(row);
  return text;
}

}  // namespace dp
