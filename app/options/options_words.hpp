// From the words of a command line to options and their values.
//
// Boost.Program_options takes the words apart ("--name value", "--name=value", flags); what they
// mean, and every message, is ours. Abbreviations are not accepted: an option that is added later
// must not change what a script says.
//
// All that is wrong is Error(usage), one sentence: unknown and repeated options, with the nearest
// name; values that are missing, empty or hold control characters; words that belong to no option.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/options/options_row.hpp"

namespace dp {

struct GivenOption {
  const OptionRow* row;  // of the table
  std::string value;     // "on" for a flag
};

struct GivenWords {
  std::vector<GivenOption> options;  // each once
  std::vector<std::string> others;   // words that are neither options nor their values
};

// An option that an earlier version had, and a sentence about what to use in its place.
struct RemovedOption {
  std::string_view name, instead;
};

// What the words of a command line are read as.
struct CommandLine {
  const OptionTable& table;
  std::string_view program;  // for "see dptrain --help"
  bool takes_words = false;  // other words than options and values
  std::span<const RemovedOption> removed = {};

  [[nodiscard]] GivenWords split(const std::vector<std::string>& arguments) const;
  // "did you mean --epochs?" with the nearest option's name, or where to look; for a removed option
  // what to use in its place.
  [[nodiscard]] std::string did_you_mean(std::string_view word, std::string_view dashes) const;

 private:
  [[noreturn]] void reject_option(std::string_view name) const;
};

// Whether that word, "--help", is among them. It wins over all else: help is for those whose other
// words are wrong, too.
[[nodiscard]] bool asks_for(const std::vector<std::string>& arguments, std::string_view word);

// Sets the row's field. Throws Error(usage) also for an empty value and for control characters,
// which cannot be part of a message of one line, a log's attribute or a configuration file.
void set_option(const OptionRow& row, const std::string& value);

}  // namespace dp
