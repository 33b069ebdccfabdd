// What the table of options is printed as: --help, --print-config, the log's /config.
#include <fmt/format.h>

#include <algorithm>

#include "app/options_config.hpp"
#include "app/options_table.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kTextColumn = 26;

// Appends `text` in lines of at most kWidth, the first beginning where `out` stands at `column`,
// the others indented to kTextColumn. A word longer than a line stands alone on one.
void append_wrapped(std::string& out, std::size_t column, const std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::size_t word = end - begin;
    if (column + word > kWidth && column > kTextColumn) {
      out += '\n' + std::string(kTextColumn, ' ');
      column = kTextColumn;
    }
    out += text.substr(begin, word);
    column += word;
    if (end < text.size() && column < kWidth) {
      out += ' ';
      ++column;
    }
    begin = end + 1;
  }
  out += '\n';
}

// Blanks before a line's end, which wrapping leaves behind.
std::string without_trailing_blanks(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') {
      while (!result.empty() && result.back() == ' ') result.pop_back();
    }
    result += c;
  }
  return result;
}

std::string description(const OptionRow& row) {
  std::string text = row.help;
  if (!row.range.empty()) text += fmt::format(" ({})", row.range);
  const std::string preset = row.get(Options{});
  if (row.is_flag() || !row.is_setting) return text;
  if (row.name == "dataset") return text + " [synthetic]";
  if (!preset.empty()) {
    text += fmt::format(" [{}", preset);
    if (!row.synthetic_default.empty())
      text += fmt::format("; synthetic: {}", row.synthetic_default);
    text += "]";
  }
  return text;
}

using Entries = std::vector<std::pair<std::string, std::string>>;

Entries exit_codes() {
  const auto entry = [](ErrorKind kind, const char* text) {
    return std::pair(std::to_string(static_cast<int>(kind)), std::string(text));
  };
  return {{"0", "the run is complete"},
          entry(ErrorKind::usage, "a wrong option or configuration file"),
          entry(ErrorKind::data,
                "data, log, trace or standard output cannot be read or written, or the training "
                "diverges"),
          entry(ErrorKind::communication, "a rank is silent or lost, or MPI fails"),
          entry(ErrorKind::device, "no such device, not enough memory, unsupported precision"),
          entry(ErrorKind::internal, "a mistake in dptrain: please report it"),
          {"130, 143", "stopped by Ctrl-C (SIGINT) or by SIGTERM"}};
}

Entries own_images() {
  return {
      {"10 classes",
       "the files data_batch_1.bin to data_batch_5.bin and test_batch.bin; a record is one byte "
       "with the label, 0 to 9, and 3,072 bytes of pixels: 32 rows of 32 red values, then green, "
       "then blue"},
      {"100 classes",
       "the files train.bin and test.bin; a record has one more byte in front, 0 to 19, that is "
       "not used, and labels are 0 to 99"},
      {"both",
       "a file is nothing but records, any number of them; pixels are normalised with CIFAR-10's "
       "mean and standard deviation, whatever the images are"}};
}

void append_entries(std::string& out, const std::string& title,
                    const std::vector<std::pair<std::string, std::string>>& entries) {
  if (entries.empty()) return;
  out += fmt::format("\n{}\n", title);
  for (const auto& [name, text] : entries) {
    std::string head = "  " + name;
    head.resize(kTextColumn, ' ');
    out += head;
    append_wrapped(out, kTextColumn, text);
  }
}

}  // namespace

std::string help_text(const OptionContext& context) {
  std::string out =
      "Trains a convolutional network on many ranks over a slow network.\n"
      "\n"
      "  mpirun -np 4 dptrain --compress q8                 the built-in synthetic data\n"
      "  mpirun -np 4 dptrain --data-dir DIR --compress q8  CIFAR-10 or CIFAR-100\n"
      "\n"
      "Ranges are in (), defaults in []; 'synthetic:' is the default with that data.\n";
  for (const OptionGroup& group : option_table(context)) {
    out += fmt::format("\n{}\n", group.title);
    for (const OptionRow& row : group.rows) {
      std::string head = "  --" + row.name;
      if (!row.is_flag()) head += " " + row.placeholder;
      // Two blanks at least between an option and its text, which else begins on the next line.
      if (head.size() + 2 > kTextColumn) {
        out += head + '\n';
        head.clear();
      }
      head.resize(kTextColumn, ' ');
      out += head;
      append_wrapped(out, kTextColumn, description(row));
    }
  }
  append_entries(out, "Data sets, for --dataset", context.datasets);
  append_entries(out, "Codecs, for --compress", context.codecs);
  append_entries(out, "Keys of codecs, NAME:key=value,...", context.codec_keys);
  append_entries(out, "Own images, for --data-dir", own_images());
  append_entries(out, "Exit codes (under mpirun its own, mostly these)", exit_codes());
  return without_trailing_blanks(out);
}

std::vector<std::pair<std::string, std::string>> Options::changed() const {
  std::vector<std::pair<std::string, std::string>> changed;
  Options defaults;
  for (const OptionGroup& group : option_table({})) {
    for (const OptionRow& row : group.rows) {
      if (!row.is_setting) continue;
      if (is_synthetic() && !row.synthetic_default.empty()) {
        row.set(defaults, row.synthetic_default);
      }
      if (row.get(*this) != row.get(defaults)) changed.emplace_back(row.name, row.get(*this));
    }
  }
  return changed;
}

std::vector<std::pair<std::string, std::string>> Options::resolved() const {
  std::vector<std::pair<std::string, std::string>> values;
  for (const OptionGroup& group : option_table({})) {
    for (const OptionRow& row : group.rows) {
      if (row.is_setting) values.emplace_back(row.name, row.get(*this));
    }
  }
  return values;
}

std::string config_text(const Options& options) {
  std::string out = "# dptrain's options as resolved; use with --config.\n";
  for (const OptionGroup& group : option_table({})) {
    out += fmt::format("\n# {}\n", group.title);
    for (const OptionRow& row : group.rows) {
      if (!row.is_setting) continue;
      const std::string value = row.get(options);
      out += value.empty() ? fmt::format("# {} is not set\n", row.name)
                           : fmt::format("{} = {}\n", row.name, config_value(value));
    }
  }
  return out;
}

}  // namespace dp
