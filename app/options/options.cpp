// Makes Options from the command line, a configuration file and a recipe. read_arguments() and
// read_config() set the fields of given options, and note the layer of each. resolve() then adds
// the recipe and the defaults that depend on other options. If given options contradict each other,
// each resolve_...() refuses them when they are from the same layer; otherwise the higher layer
// wins. The order of the calls in resolve() matters: later rules use the results of earlier ones.
#include "app/options/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

#include "app/options/options_config.hpp"
#include "app/options/options_keyed.hpp"
#include "app/options/options_layers.hpp"
#include "app/options/options_optimizer.hpp"
#include "app/options/options_output.hpp"
#include "app/options/options_removed.hpp"
#include "app/options/options_rounds.hpp"
#include "app/options/options_schedule.hpp"
#include "app/options/options_table.hpp"
#include "app/options/options_values.hpp"
#include "app/options/options_words.hpp"
#include "app/options/recipes.hpp"
#include "app/options/text_file.hpp"
#include "io/files/shipped_script.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

constexpr std::array kRemoved = {
    RemovedOption{"plan-accuracy",
                  "experiments/README.md has the losses of the studies; dpreport shows your runs' "
                  "losses"}};

// Options under construction: the table, the values so far and where each came from.
class Builder {
 public:
  explicit Builder(const OptionContext& context)
      : context_(context), table_(option_table(context, options_)) {}
  Builder(const Builder&) = delete;  // the table's rows refer to the options
  Builder& operator=(const Builder&) = delete;

  void read_arguments(const std::vector<std::string>& arguments);
  void read_config(const std::string& text, const std::string& source);
  [[nodiscard]] Options resolve();

 private:
  [[nodiscard]] CommandLine command_line() const {
    return {.table = table_, .program = "dptrain", .removed = kRemoved};
  }
  [[nodiscard]] const OptionRow& row_of(std::string_view name) const;
  void set(const OptionRow& row, const std::string& value, Layer layer);
  [[nodiscard]] Layer layer_of(const std::string& name) const;
  [[nodiscard]] bool is_given(const std::string& name) const {
    return layer_of(name) != Layer::preset;
  }
  void read_recipe();
  void resolve_synthetic_defaults();
  void resolve_dataset();
  void for_each_row(const std::function<void(const OptionRow&, const std::string&)>& visit) const;
  void resolve_use(const OptionRow& row, const std::string& name);
  void resolve_batch();
  void resolve_checkpoint();
  void resolve_sync_bn();
  void resolve_shares();
  void resolve_codec_defaults();
  void resolve_init();

  const OptionContext& context_;
  Options options_;
  OptionTable table_;
  // Indexed by the name of the option; a key of an option is under "OPTION KEY".
  std::map<std::string, Layer> layers_;
  std::set<std::string> resolved_uses_;
};

const OptionRow& Builder::row_of(std::string_view name) const {
  const OptionRow* row = find_option(table_, name);
  DP_ASSERT(row != nullptr, "no option is called {}", name);
  return *row;
}

void Builder::set(const OptionRow& row, const std::string& value, Layer layer) {
  set_option(row, value);
  layers_[row.name] = layer;
  if (row.keys.empty()) return;
  // A value replaces the whole option, so keys that a lower layer gave are forgotten.
  for (const OptionRow& key : row.keys) layers_.erase(row.name + " " + key.name);
  for (const auto& [key, word] : split_keyed(row, value).keys) {
    layers_[row.name + " " + key] = layer;
  }
}

Layer Builder::layer_of(const std::string& name) const {
  const auto found = layers_.find(name);
  return found == layers_.end() ? Layer::preset : found->second;
}

// All arguments of the forms "--name value" and "--name=value", whatever the names are.
NamedValues named_words(const std::vector<std::string>& arguments) {
  NamedValues named;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("--")) continue;
    const std::string word = arguments[i].substr(2);
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) {
      named.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    } else {
      const bool has_value = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
      named.emplace_back(word, has_value ? arguments[i + 1] : "");
    }
  }
  return named;
}

// The command line is set twice: before the file, so that mistakes in the command line are reported
// first, and after the file, so that values of the command line win.
void Builder::read_arguments(const std::vector<std::string>& arguments) {
  refuse_removed(named_words(arguments));
  const GivenWords given = command_line().split(arguments);
  const auto set_all = [&] {
    for (const auto& [row, value] : given.options) set(*row, value, Layer::command_line);
  };
  set_all();
  const auto config = std::find_if(given.options.begin(), given.options.end(),
                                   [](const GivenOption& g) { return g.row->name == "config"; });
  if (config == given.options.end()) return;
  if (!context_.reads_pipes && is_pipe(config->value)) return;
  read_config(read_config_file(config->value), config->value);
  set_all();
}

// Runs f and puts the line of the configuration file into the errors of f.
template <class F>
void at_line(const ConfigLine& line, F f) {
  try {
    f();
  } catch (const Error& error) {
    throw_error(error.kind(), "{}: {}", line.where, error.what());
  }
}

void Builder::read_config(const std::string& text, const std::string& source) {
  const std::vector<ConfigLine> lines = parse_config_lines(text, source);
  NamedValues given;
  for (const ConfigLine& line : lines) given.emplace_back(line.name, line.value);
  std::map<std::string, std::string> seen;
  for (const ConfigLine& line : lines) {
    if (is_removed(line.name)) at_line(line, [&] { refuse_removed(given); });
    const OptionRow* row = find_option(table_, line.name);
    if (row == nullptr) {
      throw_error(ErrorKind::usage, "{}: {}: unknown option; {}", line.where, shown(line.name),
                  command_line().did_you_mean(line.name, ""));
    }
    if (!row->is_setting) {
      throw_error(ErrorKind::usage, "{}: {}: belongs on the command line, not in a file",
                  line.where, line.name);
    }
    const auto [before, is_first] = seen.emplace(line.name, line.where);
    if (!is_first) {
      throw_error(ErrorKind::usage, "{}: {}: given twice, first at {}", line.where, line.name,
                  before->second);
    }
    at_line(line, [&] { set(*row, line.value, Layer::config); });
  }
}

// A recipe sets only options that are not given.
void Builder::read_recipe() {
  const Recipe* recipe = find_recipe(options_.recipe);
  if (recipe == nullptr) return;
  for (const auto& [name, value] : recipe->options) {
    if (!is_given(name)) set(row_of(name), value, Layer::recipe);
  }
}

Options Builder::resolve() {
  read_recipe();
  resolve_dataset();
  resolve_batch();
  if (options_.is_synthetic()) resolve_synthetic_defaults();
  for_each_row([this](const OptionRow& row, const std::string& name) { resolve_use(row, name); });
  resolve_optimizer(options_, [this](const std::string& name) { return layer_of(name); });
  resolve_schedule(options_, [this](const std::string& name) { return layer_of(name); });
  resolve_output(options_, [this](const std::string& name) { return layer_of(name); });
  resolve_checkpoint();
  resolve_sync_bn();
  resolve_rounds(
      options_, [this](const std::string& name) { return layer_of(name); }, context_);
  resolve_shares();
  resolve_codec_defaults();
  resolve_init();
  return options_;
}

void Builder::resolve_synthetic_defaults() {
  for (const OptionGroup& group : table_) {
    for (const OptionRow& row : group.rows) {
      const bool is_replaced = row.name == "batch-size" && options_.global_batch != 0;
      const bool is_known =
          row.name != "model" || std::find(context_.models.begin(), context_.models.end(),
                                           row.synthetic_default) != context_.models.end();
      if (!row.synthetic_default.empty() && !is_given(row.name) && !is_replaced && is_known) {
        row.set(row.synthetic_default);
      }
    }
  }
}

// Options that the user gave take precedence over defaults. If two of them contradict each other,
// the one from the higher layer wins.
void Builder::resolve_dataset() {
  const Layer kind = layer_of("dataset"), folder = layer_of("data-dir");
  const bool is_synthetic = is_given("dataset") && options_.is_synthetic();
  if (is_synthetic && is_given("data-dir") && kind == folder) {
    throw_error(ErrorKind::usage,
                "--dataset synthetic: is built in and reads no files; leave out --data-dir {}",
                shown(options_.data_dir));
  }
  if (is_synthetic && kind > folder) {
    options_.data_dir.clear();
  } else if (!is_given("data-dir")) {
    if (is_given("dataset") && !is_synthetic) {
      throw_error(ErrorKind::usage, "--dataset {}: needs --data-dir, the path of a folder with {}",
                  options_.dataset,
                  options_.is_folder()
                      ? "one folder of images per class, or the path of a pack"
                      : "its files; " + shipped_script("get_cifar.sh") + " downloads them");
    }
    options_.dataset = "synthetic";
  } else if (!is_given("dataset") || is_synthetic) {
    const std::string found =
        context_.detect_dataset ? context_.detect_dataset(options_.data_dir) : std::string();
    // If the data set in the folder is unknown and the user gave an option for image folders, it
    // counts as an image folder. The loader reports what is missing.
    bool is_of_images = false;
    for_each_row([&](const OptionRow& row, const std::string& name) {
      is_of_images |= row.only_with.option == "dataset" && is_given(name);
    });
    options_.dataset = !found.empty() ? found : is_of_images ? "folder" : Options().dataset;
  }
  layers_["dataset"] = std::max(kind, folder);  // a given folder also decides the data set
}

// Visits every row, and every key under the name "OPTION KEY".
void Builder::for_each_row(
    const std::function<void(const OptionRow&, const std::string&)>& visit) const {
  for (const OptionGroup& group : table_) {
    for (const OptionRow& row : group.rows) {
      visit(row, row.name);
      for (const OptionRow& key : row.keys) visit(key, row.name + " " + key.name);
    }
  }
}

// Refuses an option that is given but has no use because of another option's value. If the other
// option is from a higher layer, the given option is set to its default instead.
void Builder::resolve_use(const OptionRow& row, const std::string& name) {
  if (!row.has_use || !resolved_uses_.insert(name).second) return;
  const std::string& other = row.only_with.option;
  resolve_use(row_of(other), other);
  if (row.has_use() || !is_given(name)) return;
  if (row.only_with.may_be_default && row.get() == row.preset) return;
  if (layer_of(name) >= layer_of(other)) {
    throw_error(ErrorKind::usage, "--{}{}: only with {}", name,
                name.find(' ') == std::string::npos ? "" : "=",
                need_of(row.only_with, name_of_keyed(row_of(other).get())));
  }
  row.set(row.preset);
  layers_[name] = layer_of(other);  // the other option has decided it
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

void Builder::resolve_sync_bn() {
  if (!options_.sync_bn || options_.exchange) return;
  if (layer_of("sync-bn") >= layer_of("exchange")) {
    throw_error(
        ErrorKind::usage,
        "--sync-bn on: not with --exchange off, because each rank then trains its own model");
  }
  options_.sync_bn = false;
}

// With --autotune off, runs must not differ from each other, so shares do not follow measured
// times. Weights make no sense if ranks train alone, because the mean of their models counts all
// ranks equally.
void Builder::resolve_shares() {
  if (!is_given("shares") && options_.autotune == "off") options_.shares = ShareChoice::even();
  const bool is_alone = !options_.exchange || options_.sync_every.has_rounds();
  if (options_.shares.kind != ShareChoice::Kind::weights || !is_alone) return;
  const std::string other = options_.exchange
                                ? fmt::format("--sync-every {}", options_.sync_every.given)
                                : std::string("--exchange off");
  const std::string other_name = options_.exchange ? "sync-every" : "exchange";
  if (layer_of("shares") >= layer_of(other_name)) {
    throw_error(
        ErrorKind::usage,
        "--shares {}: not with {}, since each rank then takes its own steps; allowed: even, auto "
        "(then the same as even)",
        options_.shares.given, other);
  }
  options_.shares = ShareChoice::even();
}

void Builder::resolve_codec_defaults() {
  // With "auto", every training step has a row in the log. From these rows the run can be repeated,
  // and its report can show the bits per value.
  if (options_.compress.is_auto() && !is_given("log-steps")) options_.log_steps = 1;
  if (is_given("topology") || !context_.topology_for) return;
  const std::string_view topology = context_.topology_for(options_.compress.codec, context_.ranks);
  if (!topology.empty()) options_.topology = topology;
}

void Builder::resolve_checkpoint() {
  if (options_.checkpoint.empty()) {
    throw_error(ErrorKind::usage, "--checkpoint: must be the path of a folder or none");
  }
}

void Builder::resolve_init() {
  if (options_.epochs > 0) return;
  if (options_.init == "none") {
    throw_error(ErrorKind::usage,
                "--epochs 0: evaluates the weights of --init FILE.h5, which is missing; to train, "
                "give at least 1");
  }
  for (const char* name : {"export", "trace", "tensorboard", "log", "checkpoint"}) {
    const std::string value = row_of(name).get();
    if (value == "none" || value == "auto") continue;
    if (layer_of(name) >= layer_of("epochs")) {
      throw_error(ErrorKind::usage, "--{} {}: not with --epochs 0, which only evaluates", name,
                  value);
    }
  }
  options_.log = options_.export_file = options_.trace = options_.tensorboard = "none";
  options_.checkpoint = "none";
  options_.resume = options_.accept_build = false;
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments, const OptionContext& context) {
  const bool is_help = help_topic(arguments).has_value();
  if (is_help || asks_for(arguments, "--version")) {
    Options options = Builder(context).resolve();
    options.action = is_help ? Options::Action::help : Options::Action::version;
    return options;
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
        "--lr-schedule step:milestones={}: the run ends after {} epoch{}, so {} has no effect",
        fmt::join(lr_milestones, "/"), epochs, epochs == 1 ? "" : "s", fmt::join(late, "/")));
  }
  return lines;
}

std::int64_t Options::global_batch_of(std::int64_t ranks) const {
  if (global_batch == 0) {
    if (batch_size * planned_ranks_of(ranks) >= ranks) {
      return batch_size * planned_ranks_of(ranks) * accumulate;
    }
    throw_error(ErrorKind::usage,
                "--planned-ranks {}: with --batch-size {} only {} of the {} ranks have an image in "
                "a step",
                planned_ranks, batch_size, batch_size * planned_ranks, ranks);
  }
  if (global_batch < ranks * accumulate) {
    const std::string parts =
        accumulate > 1 ? fmt::format(" times --accumulate {}", accumulate) : std::string();
    throw_error(ErrorKind::usage,
                "--global-batch {}: must be at least the number of ranks, {}{}, so that each has "
                "an image in a step",
                global_batch, ranks, parts);
  }
  return global_batch;
}

}  // namespace dp
