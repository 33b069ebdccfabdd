#include "app/options/options_row.hpp"

#include <algorithm>
#include <map>

#include "kernels/base/error.hpp"

namespace dp {

const OptionRow* find_option(const OptionTable& table, std::string_view name) {
  for (const OptionGroup& group : table) {
    for (const OptionRow& row : group.rows) {
      if (row.name == name) return &row;
    }
  }
  return nullptr;
}

namespace {

// Returns a function that reads a row's value. If the row has keys, the function returns the name
// alone: "muon" of "muon:lr=0.24".
std::function<std::string()> choice_of(const OptionRow& row) {
  if (row.keys.empty()) return row.get;
  return [get = row.get] {
    const std::string value = get();
    return value.substr(0, value.find(':'));
  };
}

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::ranges::find(list, value) != list.end();
}

}  // namespace

OptionRow only_with(OnlyWith condition, OptionRow row) {
  row.only_with = std::move(condition);
  return row;
}

void bind_conditions(OptionTable& table) {
  // Conditions read the values of rows through these functions. The functions keep each row's
  // original get(), because get() is replaced below in rows that have a condition.
  std::map<std::string, std::function<std::string()>> choices;
  for (const OptionGroup& group : table) {
    for (const OptionRow& row : group.rows) choices[row.name] = choice_of(row);
  }
  const auto bind = [&](OptionRow& row) {
    const OnlyWith& condition = row.only_with;
    if (condition.option.empty()) return;
    row.has_use = [condition, choice = choices.at(condition.option)] {
      return condition.values.empty() ? !contains(condition.others, choice())
                                      : contains(condition.values, choice());
    };
  };
  for (OptionGroup& group : table) {
    for (OptionRow& row : group.rows) {
      for (OptionRow& key : row.keys) bind(key);
      bind(row);
      if (!row.has_use) continue;
      row.preset = row.get();
      if (row.shown_default.empty()) row.shown_default = row.preset;
      if (row.only_with.may_be_default) continue;
      row.get = [get = row.get, has_use = row.has_use] {
        return has_use() ? get() : std::string();
      };
    }
  }
}

std::string need_of(const OnlyWith& condition, const std::string& value) {
  std::string words = condition.words;
  if (words.empty()) words = "--" + condition.option + " " + joined_choices(condition.values);
  return value == "none" || value == "off" ? words : words + ", not " + value;
}

OptionRow whole_row(std::string name, std::int64_t& field, WholeRange range, std::string help,
                    std::string synthetic_default) {
  const std::string option = "--" + name;
  return {.name = std::move(name),
          .placeholder = "N",
          .help = std::move(help),
          .allowed = range.allowed(),
          .range = range.text(),
          .synthetic_default = std::move(synthetic_default),
          .set = [option, range,
                  &field](std::string_view text) { field = parse_whole(option, text, range); },
          .get = [&field] { return std::to_string(field); }};
}

OptionRow real_row(std::string name, double& field, RealRange range, std::string help,
                   std::string synthetic_default) {
  const std::string option = "--" + name;
  return {.name = std::move(name),
          .placeholder = "X",
          .help = std::move(help),
          .allowed = range.allowed(),
          .range = range.text(),
          .synthetic_default = std::move(synthetic_default),
          .set = [option, range,
                  &field](std::string_view text) { field = parse_real(option, text, range); },
          .get = [&field] { return real_text(field); }};
}

OptionRow on_off_row(std::string name, bool& field, std::string help) {
  const std::string option = "--" + name;
  return {.name = std::move(name),
          .placeholder = "on|off",
          .help = std::move(help),
          .allowed = "on or off",
          .set =
              [option, &field](std::string_view text) {
                field = parse_choice(option, text, {"on", "off"}) == 0;
              },
          .get = [&field] { return field ? "on" : "off"; }};
}

OptionRow text_row(std::string name, std::string& field, std::string placeholder,
                   std::string allowed, std::string help) {
  return {.name = std::move(name),
          .placeholder = std::move(placeholder),
          .help = std::move(help),
          .allowed = std::move(allowed),
          .set = [&field](std::string_view value) { field = std::string(value); },
          .get = [&field] { return field; }};
}

OptionRow name_row(std::string name, std::string& field, std::string kind,
                   std::vector<std::string> known, std::string help) {
  OptionRow row = text_row(name, field, "NAME", "the name of a " + kind,
                           fmt::format("{}: {}", help, fmt::join(known, ", ")));
  row.set = [name, kind, known, &field](std::string_view value) {
    if (!known.empty() && std::find(known.begin(), known.end(), value) == known.end()) {
      const std::string near = nearest(value, known);
      throw_error(ErrorKind::usage, "--{} {}: unknown {}; known: {}{}", name, shown(value), kind,
                  fmt::join(known, ", "),
                  near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
    field = std::string(value);
  };
  return row;
}

OptionRow rate_row(std::string name, BitRate& field, std::string help) {
  const std::string option = "--" + name;
  OptionRow row = text_row(std::move(name), field.given, "RATE", kBitRates, std::move(help));
  row.set = [option, &field](std::string_view value) { field = parse_bit_rate(option, value); };
  return row;
}

OptionRow flag_row(std::string name, bool& field, std::string help) {
  OptionRow row = on_off_row(std::move(name), field, std::move(help));
  row.placeholder = "";
  return row;
}

OptionRow call_row(std::string name, std::string help, std::function<void()> set) {
  return {.name = std::move(name),
          .placeholder = "",
          .help = std::move(help),
          .allowed = "",
          .is_setting = false,
          .set = [set = std::move(set)](std::string_view) { set(); },
          .get = [] { return std::string(); }};
}

}  // namespace dp
