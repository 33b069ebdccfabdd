#include "app/options/options_words.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <map>

#include "kernels/base/error.hpp"

namespace po = boost::program_options;

namespace dp {
namespace {

po::options_description described(const OptionTable& table) {
  po::options_description description;
  for (const OptionGroup& group : table) {
    for (const OptionRow& row : group.rows) {
      if (row.is_flag()) {
        description.add_options()(row.name.c_str(), "");
      } else {
        description.add_options()(row.name.c_str(), po::value<std::string>(), "");
      }
    }
  }
  return description;
}

// If an optional value is missing, Boost would take the next word as the value. Therefore "=on"
// is written out.
std::vector<std::string> with_optional_values(const OptionTable& table,
                                              std::vector<std::string> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) continue;
    const OptionRow* row = find_option(table, words[i].substr(2));
    const bool is_alone = i + 1 == words.size() || words[i + 1].starts_with("--");
    if (row != nullptr && row->has_optional_value && is_alone) words[i] += "=on";
  }
  return words;
}

std::string_view without_dashes(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  return word;
}

}  // namespace

std::string CommandLine::did_you_mean(std::string_view word, std::string_view dashes) const {
  for (const RemovedOption& old : removed) {
    if (old.name == without_dashes(word)) return fmt::format("it was removed; {}", old.instead);
  }
  std::vector<std::string> names;
  for (const OptionGroup& group : table) {
    for (const OptionRow& row : group.rows) names.push_back(row.name);
  }
  // "epochs=5" probably meant --epochs, too.
  const std::string near = nearest(without_dashes(word.substr(0, word.find('='))), names);
  return near.empty() ? fmt::format("see {} --help", program)
                      : fmt::format("did you mean {}{}?", dashes, near);
}

void CommandLine::reject_option(std::string_view name) const {
  throw_error(ErrorKind::usage, "{}: unknown option; {}", shown(name), did_you_mean(name, "--"));
}

GivenWords CommandLine::split(const std::vector<std::string>& arguments) const {
  if (std::find(arguments.begin(), arguments.end(), "--") != arguments.end()) {
    throw_error(ErrorKind::usage,
                "--: every word must belong to an option; leave these dashes out");
  }
  const po::options_description description = described(table);
  // Unknown options are let through, so that the message about them is ours.
  namespace style = po::command_line_style;
  po::parsed_options parsed(&description);
  try {
    parsed = po::command_line_parser(with_optional_values(table, arguments))
                 .options(description)
                 .style(style::allow_long | style::long_allow_adjacent | style::long_allow_next)
                 .allow_unregistered()
                 .run();
  } catch (const po::invalid_command_line_syntax& error) {
    const std::string option = error.get_option_name();
    const OptionRow* row = find_option(table, without_dashes(option));
    if (row == nullptr) reject_option(option);
    if (row->is_flag()) throw_error(ErrorKind::usage, "{}: takes no value", option);
    if (error.kind() == po::invalid_command_line_syntax::empty_adjacent_parameter) {
      throw_error(ErrorKind::usage, "{}: empty value; must be {}", option, row->allowed);
    }
    throw_error(ErrorKind::usage, "{}: needs a value, {}", option, row->allowed);
  } catch (const po::error& error) {
    throw_error(ErrorKind::usage, "{}; see {} --help", error.what(), program);
  }

  GivenWords given;
  std::map<std::string, std::string> seen;
  for (const po::option& option : parsed.options) {
    if (option.position_key >= 0) {  // a word that does not begin with two dashes
      const std::string& word = option.value.front();
      if (word.starts_with('-')) reject_option(word);
      if (!takes_words) {
        throw_error(ErrorKind::usage,
                    "'{}': stray word; every setting is an option with two dashes; {}", shown(word),
                    did_you_mean(word, "--"));
      }
      given.others.push_back(word);
      continue;
    }
    const OptionRow* row = option.unregistered ? nullptr : find_option(table, option.string_key);
    if (row == nullptr) reject_option("--" + option.string_key);
    const std::string value = row->is_flag() ? "on" : option.value.front();
    // Boost takes the next word as the value, whatever it looks like.
    if (value.starts_with("--")) {
      throw_error(ErrorKind::usage, "--{}: needs a value, {}, before {}", row->name, row->allowed,
                  shown(value));
    }
    const auto [before, is_first] = seen.emplace(row->name, value);
    if (!is_first) {
      throw_error(ErrorKind::usage, "--{}: given twice{}", row->name,
                  row->is_flag()
                      ? ""
                      : fmt::format(", as {} and as {}", shown(before->second), shown(value)));
    }
    given.options.push_back({row, value});
  }
  return given;
}

bool asks_for(const std::vector<std::string>& arguments, std::string_view word) {
  return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
}

void set_option(const OptionRow& row, const std::string& value) {
  if (value.empty()) {
    throw_error(ErrorKind::usage, "--{}: empty value; must be {}", row.name, row.allowed);
  }
  if (std::any_of(value.begin(), value.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; })) {
    throw_error(ErrorKind::usage, "--{} {}: holds a control character; must be {}", row.name,
                shown(value), row.allowed);
  }
  row.set(value);
}

}  // namespace dp
