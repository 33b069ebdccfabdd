#include "app/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <iterator>
#include <map>

#include "app/options_config.hpp"
#include "app/options_table.hpp"
#include "app/options_values.hpp"
#include "kernels/base/error.hpp"

namespace po = boost::program_options;

namespace dp {
namespace {

// Where a value comes from; the higher wins.
enum class Layer { preset, config, command_line };

// Options under construction: the table, the values so far and where each came from.
class Builder {
 public:
  explicit Builder(const OptionContext& context) : context_(context) {
    for (OptionGroup& group : option_table(context)) {
      for (OptionRow& row : group.rows) rows_.push_back(std::move(row));
    }
  }

  [[nodiscard]] const std::vector<OptionRow>& rows() const { return rows_; }

  void read_arguments(const std::vector<std::string>& arguments);
  void read_config(const std::string& text, const std::string& source);
  [[nodiscard]] Options resolve();

 private:
  [[nodiscard]] const OptionRow* find(std::string_view name) const;
  [[nodiscard]] const OptionRow& row_of(std::string_view name) const;
  [[nodiscard]] std::string did_you_mean(std::string_view word, std::string_view dashes) const;
  [[noreturn]] void reject_word(const std::string& word) const;
  void set(const OptionRow& row, const std::string& value, Layer layer);
  [[nodiscard]] Layer layer_of(const std::string& name) const;
  [[nodiscard]] bool is_given(const std::string& name) const {
    return layer_of(name) != Layer::preset;
  }
  void resolve_dataset();
  void resolve_batch();
  void resolve_schedule();
  void resolve_trace();

  const OptionContext& context_;
  std::vector<OptionRow> rows_;
  std::map<std::string, Layer> layers_;
  Options options_;
};

const OptionRow* Builder::find(std::string_view name) const {
  const auto found = std::find_if(rows_.begin(), rows_.end(),
                                  [&](const OptionRow& row) { return row.name == name; });
  return found == rows_.end() ? nullptr : &*found;
}

const OptionRow& Builder::row_of(std::string_view name) const {
  const OptionRow* row = find(name);
  DP_ASSERT(row != nullptr, "no option is called {}", name);
  return *row;
}

// "did you mean --epochs?", or where to look.
std::string Builder::did_you_mean(std::string_view word, std::string_view dashes) const {
  std::vector<std::string> names;
  for (const OptionRow& row : rows_) names.push_back(row.name);
  word = word.substr(0, word.find('='));
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  const std::string near = nearest(word, names);
  return near.empty() ? "see dptrain --help" : fmt::format("did you mean {}{}?", dashes, near);
}

void Builder::reject_word(const std::string& word) const {
  if (word.starts_with('-')) {
    throw_error(ErrorKind::usage, "{}: unknown option; {}", shown(word.substr(0, word.find('='))),
                did_you_mean(word, "--"));
  }
  throw_error(ErrorKind::usage, "'{}': stray word; every setting is an option with two dashes; {}",
              shown(word), did_you_mean(word, "--"));
}

void Builder::set(const OptionRow& row, const std::string& value, Layer layer) {
  if (value.empty()) {
    throw_error(ErrorKind::usage, "--{}: empty value; must be {}", row.name, row.allowed);
  }
  // A line break or the like cannot be part of a one-line message, a log's attribute or a
  // configuration file.
  if (std::any_of(value.begin(), value.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; })) {
    throw_error(ErrorKind::usage, "--{} {}: holds a control character; must be {}", row.name,
                shown(value), row.allowed);
  }
  row.set(options_, value);
  layers_[row.name] = layer;
}

Layer Builder::layer_of(const std::string& name) const {
  const auto found = layers_.find(name);
  return found == layers_.end() ? Layer::preset : found->second;
}

void Builder::read_arguments(const std::vector<std::string>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--") != arguments.end()) {
    throw_error(
        ErrorKind::usage,
        "--: two dashes alone end the options of some programs, but here every word belongs "
        "to an option; leave them out");
  }
  po::options_description description;
  for (const OptionRow& row : rows_) {
    if (row.is_flag()) {
      description.add_options()(row.name.c_str(), "");
    } else {
      description.add_options()(row.name.c_str(), po::value<std::string>(), "");
    }
  }
  // Guessing from abbreviations stays off: an option that is added later must not change what a
  // script says. Unknown options are let through, so that the message about them is ours.
  namespace style = po::command_line_style;
  po::parsed_options parsed(&description);
  try {
    parsed = po::command_line_parser(arguments)
                 .options(description)
                 .style(style::allow_long | style::long_allow_adjacent | style::long_allow_next)
                 .allow_unregistered()
                 .run();
  } catch (const po::invalid_command_line_syntax& error) {
    std::string name = error.get_option_name();
    name.erase(0, name.find_first_not_of('-'));
    name = name.substr(0, name.find('='));
    const OptionRow* row = find(name);
    if (row == nullptr) reject_word("--" + name);
    if (row->is_flag()) throw_error(ErrorKind::usage, "--{}: takes no value", name);
    if (error.kind() == po::invalid_command_line_syntax::empty_adjacent_parameter) {
      throw_error(ErrorKind::usage, "--{}: empty value; must be {}", name, row->allowed);
    }
    throw_error(ErrorKind::usage, "--{}: needs a value, {}", name, row->allowed);
  } catch (const po::error& error) {
    throw_error(ErrorKind::usage, "{}; see dptrain --help", error.what());
  }

  std::map<std::string, std::string> seen;
  const std::string* config = nullptr;
  for (const po::option& option : parsed.options) {
    const OptionRow* row = option.unregistered ? nullptr : find(option.string_key);
    if (row == nullptr) {
      reject_word(option.original_tokens.empty() ? "" : option.original_tokens.front());
    }
    // Boost takes the next word whatever it looks like.
    const std::string value = row->is_flag() ? "on" : option.value.front();
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
    set(*row, value, Layer::command_line);
    if (row->name == "config") config = &before->second;
  }
  if (config == nullptr) return;

  // The file's values go below those already there: read it, then set the command line's again.
  read_config(read_config_file(*config), *config);
  for (const auto& [name, value] : seen) set(row_of(name), value, Layer::command_line);
}

void Builder::read_config(const std::string& text, const std::string& source) {
  std::map<std::string, std::string> seen;
  for (const ConfigLine& line : parse_config_lines(text, source)) {
    const OptionRow* row = find(line.name);
    if (row == nullptr) {
      throw_error(ErrorKind::usage, "{}: {}: unknown option; {}", line.where, shown(line.name),
                  did_you_mean(line.name, ""));
    }
    if (!row->is_setting) {
      throw_error(ErrorKind::usage, "{}: {}: belongs on the command line, not into a file",
                  line.where, line.name);
    }
    const auto [before, is_first] = seen.emplace(line.name, line.where);
    if (!is_first) {
      throw_error(ErrorKind::usage, "{}: {}: given twice, first at {}", line.where, line.name,
                  before->second);
    }
    try {
      set(*row, line.value, Layer::config);
    } catch (const Error& error) {
      throw_error(error.kind(), "{}: {}", line.where, error.what());
    }
  }
}

Options Builder::resolve() {
  resolve_dataset();
  resolve_batch();
  if (options_.is_synthetic()) {
    for (const OptionRow& row : rows_) {
      const bool is_replaced = row.name == "batch-size" && options_.global_batch != 0;
      const bool is_known =
          row.name != "model" || std::find(context_.models.begin(), context_.models.end(),
                                           row.synthetic_default) != context_.models.end();
      if (!row.synthetic_default.empty() && !is_given(row.name) && !is_replaced && is_known) {
        row.set(options_, row.synthetic_default);
      }
    }
  }
  resolve_schedule();
  resolve_trace();
  return options_;
}

// What is given decides; where two given things contradict each other, the higher layer does.
void Builder::resolve_dataset() {
  const Layer kind = layer_of("dataset"), folder = layer_of("data-dir");
  const bool is_synthetic = is_given("dataset") && options_.is_synthetic();
  if (is_synthetic && is_given("data-dir") && kind == folder) {
    throw_error(ErrorKind::usage,
                "--dataset synthetic: is built in and reads no files; leave --data-dir {} out",
                shown(options_.data_dir));
  }
  if (is_synthetic && kind > folder) {
    options_.data_dir.clear();
  } else if (!is_given("data-dir")) {
    if (is_given("dataset") && !is_synthetic) {
      throw_error(ErrorKind::usage,
                  "--dataset {}: needs --data-dir, the path of a folder with its files; "
                  "experiments/get_cifar.sh brings them",
                  options_.dataset);
    }
    options_.dataset = "synthetic";
  } else if (!is_given("dataset") || is_synthetic) {
    const std::string found =
        context_.detect_dataset ? context_.detect_dataset(options_.data_dir) : std::string();
    // Where nobody can tell, the usual set's loader says what it misses.
    options_.dataset = found.empty() ? Options().dataset : found;
  }
}

void Builder::resolve_batch() {
  const Layer own = layer_of("batch-size"), global = layer_of("global-batch");
  if (global == Layer::preset) return;
  if (own == global) {
    throw_error(ErrorKind::usage,
                "--global-batch {}: not together with --batch-size {}; give one of the two",
                options_.global_batch, options_.batch_size);
  }
  (own > global ? options_.global_batch : options_.batch_size) = 0;
}

void Builder::resolve_schedule() {
  const bool is_step = options_.lr_schedule == Options::LrSchedule::step;
  const Layer schedule = layer_of("lr-schedule");
  const std::string name = row_of("lr-schedule").get(options_);
  if (is_given("lr-milestones") && !is_step) {
    if (layer_of("lr-milestones") >= schedule) {
      throw_error(ErrorKind::usage, "--lr-milestones {}: only with --lr-schedule step, not {}",
                  row_of("lr-milestones").get(options_), name);
    }
    options_.lr_milestones.clear();
  }
  if (is_step && options_.lr_milestones.empty()) {
    // A half and three quarters of the run, as He et al. 2016 (32,000 and 48,000 of 64,000 steps).
    const auto epochs = static_cast<double>(options_.epochs);
    options_.lr_milestones = {0.5 * epochs, 0.75 * epochs};
  }
  if (options_.warmup_epochs > 0 && options_.lr_schedule == Options::LrSchedule::onecycle) {
    if (layer_of("warmup-epochs") >= schedule) {
      throw_error(ErrorKind::usage,
                  "--warmup-epochs {}: not with --lr-schedule onecycle, which rises by itself; "
                  "choose constant, step or cosine",
                  options_.warmup_epochs);
    }
    options_.warmup_epochs = 0;
  }
  if (options_.warmup_epochs > static_cast<double>(options_.epochs)) {
    throw_error(ErrorKind::usage, "--warmup-epochs {}: must be at most the run's --epochs {}",
                options_.warmup_epochs, options_.epochs);
  }
  if (options_.compress_warmup > 0) {
    if (options_.compress == "none") {
      if (layer_of("compress-warmup") >= layer_of("compress")) {
        throw_error(ErrorKind::usage, "--compress-warmup {}: only with --compress, which is none",
                    options_.compress_warmup);
      }
      options_.compress_warmup = 0;
    } else if (options_.compress_warmup >= options_.epochs) {
      throw_error(ErrorKind::usage,
                  "--compress-warmup {}: must be below the run's --epochs {}, or nothing is ever "
                  "sent as {}",
                  options_.compress_warmup, options_.epochs, options_.compress);
    }
  }
  if (options_.nesterov && options_.momentum == 0) {
    throw_error(ErrorKind::usage, "--nesterov on: needs a --momentum above 0");
  }
}

void Builder::resolve_trace() {
  if (options_.trace != "none" || !is_given("trace-steps")) return;
  if (layer_of("trace-steps") >= layer_of("trace")) {
    throw_error(ErrorKind::usage, "--trace-steps {}:{}: only with --trace FILE.json",
                options_.trace_first, options_.trace_steps);
  }
  options_.trace_first = Options().trace_first;
  options_.trace_steps = Options().trace_steps;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments, const OptionContext& context) {
  // Help is for those whose other words are wrong, too.
  for (const auto& [word, action] : {std::pair{"--help", Options::Action::help},
                                     std::pair{"--version", Options::Action::version}}) {
    if (std::find(arguments.begin(), arguments.end(), word) != arguments.end()) {
      Options options = Builder(context).resolve();
      options.action = action;
      return options;
    }
  }
  Builder builder(context);
  builder.read_arguments(arguments);
  return builder.resolve();
}

Options parse_config_text(const std::string& text, const std::string& name,
                          const OptionContext& context) {
  Builder builder(context);
  builder.read_config(text, name);
  return builder.resolve();
}

std::vector<std::string> Options::warnings() const {
  std::vector<std::string> lines;
  std::vector<double> late;
  std::copy_if(lr_milestones.begin(), lr_milestones.end(), std::back_inserter(late),
               [&](double milestone) { return milestone >= static_cast<double>(epochs); });
  if (!late.empty()) {
    lines.push_back(fmt::format(
        "--lr-milestones {}: the run ends after {} epoch{}, so that {} has no effect",
        fmt::join(lr_milestones, ","), epochs, epochs == 1 ? "" : "s", fmt::join(late, ",")));
  }
  return lines;
}

std::int64_t Options::global_batch_of(std::int64_t ranks) const {
  if (global_batch == 0) return batch_size * ranks;
  if (global_batch < ranks) {
    throw_error(ErrorKind::usage,
                "--global-batch {}: must be at least the number of ranks, {}, so that each has an "
                "image in a step",
                global_batch, ranks);
  }
  return global_batch;
}

}  // namespace dp
