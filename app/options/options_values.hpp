// Values of options: from text and back, and the messages for wrong values.
//
// The parsers take the whole text, or throw Error(usage) "--name value: must be ...". `name`
// includes the dashes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

struct WholeRange {
  std::int64_t least = 0;
  std::int64_t most = 0;
  // "1 to 64", "a whole number from 1 to 64"
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string allowed() const;
};

struct RealRange {
  double least = 0;
  double most = 0;
  bool is_least_allowed = true;
  bool is_most_allowed = true;
  // text(): "0 to below 1" or "above 0, up to 100". allowed(): the same as "a number from ..." or
  // "a number above ...".
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string allowed() const;
  [[nodiscard]] bool contains(double value) const;
};

[[nodiscard]] std::int64_t parse_whole(std::string_view name, std::string_view text,
                                       const WholeRange& range);
// Refuses infinity and NaN.
[[nodiscard]] double parse_real(std::string_view name, std::string_view text,
                                const RealRange& range);
// "60,120,160": increasing.
[[nodiscard]] std::vector<double> parse_increasing(std::string_view name, std::string_view text,
                                                   const RealRange& range);
// "0.5,0.4,0.3": three numbers, for red, green and blue.
[[nodiscard]] std::vector<double> parse_colours(std::string_view name, std::string_view text,
                                                const RealRange& range);
// The position of `text` in `choices`.
[[nodiscard]] std::size_t parse_choice(std::string_view name, std::string_view text,
                                       const std::vector<std::string>& choices);

struct BitRate {
  double bit_per_s = 0;       // 0: off
  std::string given = "off";  // the value as text
};

// "off" or a bandwidth such as "100mbit" or "2.5gbit" (10^3, 10^6, 10^9 bit/s), as tc writes it.
inline constexpr const char* kBitRates = "off or a rate from 10kbit to 400gbit, such as 100mbit";
[[nodiscard]] BitRate parse_bit_rate(std::string_view name, std::string_view text);

// The shortest text that reads back as the same number.
[[nodiscard]] std::string real_text(double value);

// Splits "a,b" into "a" and "b". Returns at least one part; a part may be empty.
[[nodiscard]] std::vector<std::string> split_at_commas(std::string_view list);
// Splits at another character. A list in a key's value is written "a/b", because commas separate
// keys.
[[nodiscard]] std::vector<std::string> split_at(std::string_view list, char separator);

// "a, b or c"
[[nodiscard]] std::string joined_choices(const std::vector<std::string>& choices);

// A user's text for messages: cut after 60 characters, with "?" for control characters.
[[nodiscard]] std::string shown(std::string_view text);

// The known name that `text` probably means: one that it abbreviates, or one within a few typing
// errors. Empty if none is near.
[[nodiscard]] std::string nearest(std::string_view text, const std::vector<std::string>& known);

}  // namespace dp
