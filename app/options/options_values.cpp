#include "app/options/options_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/base/error.hpp"

namespace dp {
namespace {

template <class Number>
bool read_whole_text(std::string_view text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

// The least number of insertions, deletions, replacements and swaps of neighbours that turn a into
// b (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string WholeRange::text() const { return fmt::format("{} to {}", least, most); }

std::string WholeRange::allowed() const { return "a whole number from " + text(); }

std::string RealRange::text() const {
  const std::string_view most_word = is_most_allowed ? "" : "below ";
  return is_least_allowed ? fmt::format("{} to {}{}", least, most_word, most)
                          : fmt::format("above {}, up to {}{}", least, most_word, most);
}

std::string RealRange::allowed() const {
  return fmt::format("a number {}{}", is_least_allowed ? "from " : "", text());
}

bool RealRange::contains(double value) const {
  // Written so that a NaN is outside.
  return (is_least_allowed ? value >= least : value > least) &&
         (is_most_allowed ? value <= most : value < most);
}

std::int64_t parse_whole(std::string_view name, std::string_view text, const WholeRange& range) {
  std::int64_t value = 0;
  if (!read_whole_text(text, value) || value < range.least || value > range.most) {
    throw_error(ErrorKind::usage, "{} {}: must be {}", name, shown(text), range.allowed());
  }
  return value;
}

double parse_real(std::string_view name, std::string_view text, const RealRange& range) {
  double value = 0;
  if (!read_whole_text(text, value) || !std::isfinite(value) || !range.contains(value)) {
    throw_error(ErrorKind::usage, "{} {}: must be {}", name, shown(text), range.allowed());
  }
  return value;
}

BitRate parse_bit_rate(std::string_view name, std::string_view text) {
  if (text == "off") return {};
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
  for (const auto& [unit, bits] : kUnits) {
    if (!text.ends_with(unit)) continue;
    double value = 0;
    if (!read_whole_text(text.substr(0, text.size() - unit.size()), value)) break;
    const double rate = value * bits;
    if (rate >= 1e4 && rate <= 4e11) return {rate, std::string(text)};  // false for NaN
    break;
  }
  throw_error(ErrorKind::usage, "{} {}: must be {}", name, shown(text), kBitRates);
}

std::vector<double> parse_increasing(std::string_view name, std::string_view text,
                                     const RealRange& range) {
  std::vector<double> values;
  for (const std::string& part : split_at_commas(text)) {
    double value = 0;
    if (!read_whole_text(part, value) || !range.contains(value) ||
        (!values.empty() && value <= values.back())) {
      throw_error(ErrorKind::usage, "{} {}: must be increasing numbers joined by commas, each {}",
                  name, shown(text), range.text());
    }
    values.push_back(value);
  }
  return values;
}

std::vector<double> parse_colours(std::string_view name, std::string_view text,
                                  const RealRange& range) {
  const std::vector<std::string> parts = split_at_commas(text);
  std::vector<double> values;
  for (const std::string& part : parts) {
    double value = 0;
    if (read_whole_text(part, value) && range.contains(value)) values.push_back(value);
  }
  if (parts.size() != 3 || values.size() != 3) {
    throw_error(ErrorKind::usage,
                "{} {}: must be three numbers joined by commas, for red, green and blue, each {}",
                name, shown(text), range.text());
  }
  return values;
}

std::size_t parse_choice(std::string_view name, std::string_view text,
                         const std::vector<std::string>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) {
    const std::string near = nearest(text, choices);
    throw_error(ErrorKind::usage, "{} {}: must be {}{}", name, shown(text), joined_choices(choices),
                near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
  return static_cast<std::size_t>(found - choices.begin());
}

std::string real_text(double value) { return fmt::format("{}", value); }

std::vector<std::string> split_at(std::string_view list, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = std::min(list.find(separator), list.size());
    parts.emplace_back(list.substr(0, end));
    if (end == list.size()) return parts;
    list.remove_prefix(end + 1);
  }
}

std::vector<std::string> split_at_commas(std::string_view list) { return split_at(list, ','); }

std::string joined_choices(const std::vector<std::string>& choices) {
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += choices[i];
  }
  return text;
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string result(text.substr(0, kMost));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  if (text.size() > kMost) result += "...";
  return result;
}

std::string nearest(std::string_view given, const std::vector<std::string>& known) {
  // A longer text cannot be a misspelling of a name, so a search would be in vain.
  constexpr std::size_t kLongest = 40;
  if (given.empty() || given.size() > kLongest) return "";
  // Names are written in small letters and with hyphens.
  std::string text(given);
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  if (text.size() >= 2) {
    for (const std::string& name : known) {
      if (name.starts_with(text)) return name;
    }
  }
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, text.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(text, name);
    // A name that shares no letter with the text is not near, however short both are.
    if (distance < best_distance && distance < std::max(text.size(), name.size())) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace dp
