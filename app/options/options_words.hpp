// Splits the words of a command line into options and their values.
//
// Boost.Program_options splits the words ("--name value", "--name=value", flags). The code here
// decides what they mean, and writes every message. Abbreviations are not accepted: an option that
// is added later must not change the meaning of a script.
//
// Every mistake is Error(usage) with one sentence: unknown and repeated options, with the nearest
// name; values that are missing, empty or contain control characters; words that belong to no
// option.
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

// An option of an earlier version, and a sentence about its replacement.
struct RemovedOption {
  std::string_view name, instead;
};

// How the words of a command line are read.
struct CommandLine {
  const OptionTable& table;
  std::string_view program;  // for "see dptrain --help"
  bool takes_words = false;  // words that are neither options nor values are allowed
  std::span<const RemovedOption> removed = {};

  [[nodiscard]] GivenWords split(const std::vector<std::string>& arguments) const;
  // "did you mean --epochs?" with the nearest option's name, or the advice to see --help. For a
  // removed option, the text names its replacement.
  [[nodiscard]] std::string did_you_mean(std::string_view word, std::string_view dashes) const;

 private:
  [[noreturn]] void reject_option(std::string_view name) const;
};

// Whether that word, such as "--help", is among the arguments. It wins over everything else, so
// that --help also works on a command line with mistakes.
[[nodiscard]] bool asks_for(const std::vector<std::string>& arguments, std::string_view word);

// Sets the row's field. Throws Error(usage) also for an empty value and for control characters,
// which do not fit into a one-line message, an attribute of the log or a configuration file.
void set_option(const OptionRow& row, const std::string& value);

}  // namespace dp
