// The forms in which the table of options is printed: --help, --print-config, the log's /config.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/options/options_config.hpp"
#include "app/options/options_optimizer.hpp"
#include "app/options/options_print.hpp"
#include "app/options/options_table.hpp"
#include "app/options/options_values.hpp"
#include "app/options/recipes.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

NamedTexts exit_codes() {
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
          entry(ErrorKind::stopped, "stopped on request after a checkpoint: --resume continues"),
          {"130, 138, 143", "stopped at once by a second Ctrl-C (SIGINT), SIGUSR1 or SIGTERM"}};
}

NamedTexts own_images() {
  return {
      {"folder",
       "JPEG and PNG files of any size, DIR/train/CLASS/NAME.jpg and DIR/val/CLASS/NAME.jpg (or "
       "test), or DIR/CLASS/NAME.jpg alone; or a file that dptrain-pack made of them"},
      {"10 classes",
       "the files data_batch_1.bin to data_batch_5.bin and test_batch.bin; a record is one byte "
       "with the label, 0 to 9, and 3,072 bytes of pixels: 32 rows of 32 red values, then green, "
       "then blue"},
      {"100 classes",
       "the files train.bin and test.bin; a record begins with one more byte, 0 to 19, which is "
       "not used; labels are 0 to 99"},
      {"10 or 100",
       "a file consists of any number of records; pixels are normalised with CIFAR-10's or "
       "CIFAR-100's mean and standard deviation, unless --mean and --std are given"}};
}

constexpr const char* kIntroduction =
    "Trains a convolutional network on many ranks over a slow network.\n"
    "\n"
    "  mpirun -np 4 dptrain --compress q8                 the built-in synthetic data\n"
    "  mpirun -np 4 dptrain --data-dir DIR --compress q8  your images, or CIFAR\n"
    "\n"
    "[] shows the default; () in --help all and --help TOPIC, the range. After\n"
    "'synthetic:' comes the default with that data set.\n";

// An option on the first screen of --help, in one line where that is possible.
struct CommonOption {
  const char *name, *placeholder, *help;
};

constexpr CommonOption kCommon[] = {
    {"recipe", "NAME", "a known training with all its options: --help data"},
    {"model", "NAME", "the network: resnet20, resnet18, vgg16-bn, ..."},
    {"data-dir", "PATH", "your images or CIFAR's files: --help data"},
    {"epochs", "N", "passes through the training images"},
    {"batch-size", "N", "images per rank and step"},
    {"seed", "N", "the seed of all random numbers"},
    {"optimizer", "NAME", "sgd, adam, adamw, lars or muon"},
    {"lr", "X", "the highest learning rate"},
    {"lr-schedule", "NAME", "cosine, step, ...: --help lr"},
    {"compress", "CODEC", "auto, q8, q4, ecq, ...: --help exchange"},
    {"sync-every", "H|auto", "exchange after every H steps: --help rounds"},
    {"device", "NAME", "auto, cpu or cuda"},
    {"threads", "N", "threads per rank; 0: its share of the cores"},
    {"checkpoint", "DIR", "write checkpoints into this folder"},
    {"resume", "", "continue from the newest checkpoint"},
    {"check", "", "test hosts, network, disk and data, then end"},
    {"plan", "", "predict a step's time with each codec, then end"},
    {"log", "FILE.h5", "the run's log; auto: dptrain-DATE-TIME.h5"},
    {"config", "FILE", "read options from this INI file"},
    {"help", "[all|TOPIC]", "print all options, or a topic's"}};

OptionGroup common_options(const OptionTable& table) {
  OptionGroup common = {"Options that most runs need", {}};
  for (const CommonOption& brief : kCommon) {
    const OptionRow* row = find_option(table, brief.name);
    DP_ASSERT(row != nullptr, "no option is called {}", brief.name);
    OptionRow& added = common.rows.emplace_back(*row);
    added.placeholder = brief.placeholder;
    added.help = brief.help;
    added.range.clear();
    added.keys.clear();
  }
  return common;
}

}  // namespace

std::optional<std::string> help_topic(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with("--help=")) return arguments[i].substr(7);
    if (arguments[i] != "--help") continue;
    const bool has_word = i + 1 < arguments.size() && !arguments[i + 1].starts_with("-");
    return has_word ? arguments[i + 1] : "";
  }
  return std::nullopt;
}

std::string help_text(const OptionContext& context, const std::string& topic) {
  Options defaults;
  OptionTable table = option_table(context, defaults);
  std::vector<std::string> topics = {"all"};
  for (const OptionGroup& group : table) topics.push_back(group.topic);
  if (!topic.empty()) static_cast<void>(parse_choice("--help", topic, topics));
  const auto shows = [&](const char* other) { return topic == "all" || topic == other; };

  std::string out;
  if (topic.empty() || topic == "all") out += kIntroduction;
  if (topic.empty()) {
    append_options(out, {common_options(table)});
    append_entries(
        out, "More",
        {{"dptrain --help all", "all options and lists"},
         {"dptrain --help TOPIC", fmt::format("the options of one topic: {}",
                                              fmt::join(topics.begin() + 1, topics.end(), ", "))}});
    return without_trailing_blanks(out);
  }
  if (topic != "all") {
    std::erase_if(table, [&](const OptionGroup& group) { return group.topic != topic; });
  }
  append_options(out, table);
  if (shows("data")) append_entries(out, "Data sets, for --dataset", context.datasets);
  NamedTexts recipes;
  for (const Recipe& recipe : recipes_for(context.models)) {
    recipes.emplace_back(recipe.name, recipe.text + ": " + recipe.words());
  }
  if (shows("data")) append_entries(out, "Recipes, for --recipe", recipes);
  if (shows("exchange")) {
    append_entries(out, "Codecs, for --compress", context.codecs);
    append_entries(out, "Keys of codecs, NAME:key=value,...", context.codec_keys);
  }
  if (shows("data")) append_entries(out, "Your images, for --data-dir", own_images());
  if (shows("output")) {
    append_entries(out, "Exit codes (mpirun mostly returns the same)", exit_codes());
  }
  return without_trailing_blanks(out.substr(out.starts_with('\n') ? 1 : 0));
}

std::vector<std::pair<std::string, std::string>> Options::changed() const {
  std::vector<std::pair<std::string, std::string>> changed;
  Options mine = *this, defaults;
  defaults.optimizer = optimizer;  // some defaults depend on the optimiser
  set_optimizer_defaults(defaults);
  const OptionTable table = option_table({}, mine), default_table = option_table({}, defaults);
  for (std::size_t g = 0; g < table.size(); ++g) {
    for (std::size_t r = 0; r < table[g].rows.size(); ++r) {
      const OptionRow &row = table[g].rows[r], &preset = default_table[g].rows[r];
      if (!row.is_setting) continue;
      // The synthetic data set's own default of --lr is for SGD only.
      const bool is_other_rate = row.name == "lr" && optimizer != Optimizer::sgd;
      if (is_synthetic() && !row.synthetic_default.empty() && !is_other_rate) {
        preset.set(row.synthetic_default);
      }
      // Skips a row whose value is its own default. Without this check, a row would count as
      // changed when another option gives it a use, because a row without a use has an empty value.
      if (preset.has_use && row.get() == preset.preset) continue;
      const bool is_other_rule = row.name == "optimizer" && optimizer != Optimizer::sgd;
      if (row.get() != preset.get() || is_other_rule) changed.emplace_back(row.name, row.get());
    }
  }
  return changed;
}

std::vector<std::pair<std::string, std::string>> Options::resolved() const {
  std::vector<std::pair<std::string, std::string>> values;
  Options copy = *this;
  for (const OptionGroup& group : option_table({}, copy)) {
    for (const OptionRow& row : group.rows) {
      if (row.is_setting) values.emplace_back(row.name, row.get());
    }
  }
  return values;
}

std::string config_text(const Options& options) {
  std::string out = "# dptrain's options as resolved; use with --config.\n";
  Options copy = options;
  for (const OptionGroup& group : option_table({}, copy)) {
    out += fmt::format("\n# {}\n", group.title);
    for (const OptionRow& row : group.rows) {
      if (!row.is_setting) continue;
      const std::string value = row.get();
      out += value.empty() ? fmt::format("# {} is not set\n", row.name)
                           : fmt::format("{} = {}\n", row.name, config_value(value));
    }
  }
  return out;
}

}  // namespace dp
