#include "app/options_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "app/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

OptionRow whole(std::string name, std::int64_t Options::*field, WholeRange range, std::string help,
                std::string synthetic_default = "") {
  const std::string option = "--" + name;
  return {.name = std::move(name),
          .placeholder = "N",
          .help = std::move(help),
          .allowed = range.allowed(),
          .range = range.text(),
          .synthetic_default = std::move(synthetic_default),
          .set = [=](Options& options,
                     std::string_view text) { options.*field = parse_whole(option, text, range); },
          .get = [=](const Options& options) { return std::to_string(options.*field); }};
}

OptionRow real(std::string name, double Options::*field, RealRange range, std::string help,
               std::string synthetic_default = "") {
  const std::string option = "--" + name;
  return {.name = std::move(name),
          .placeholder = "X",
          .help = std::move(help),
          .allowed = range.allowed(),
          .range = range.text(),
          .synthetic_default = std::move(synthetic_default),
          .set = [=](Options& options,
                     std::string_view text) { options.*field = parse_real(option, text, range); },
          .get = [=](const Options& options) { return real_text(options.*field); }};
}

// `choices` name the enumerators 0, 1, 2, ...
template <class Enum>
OptionRow choice(std::string name, Enum Options::*field, std::vector<std::string> choices,
                 std::string help, std::string synthetic_default = "") {
  const std::string option = "--" + name;
  return {.name = std::move(name),
          .placeholder = fmt::format("{}", fmt::join(choices, "|")),
          .help = std::move(help),
          .allowed = joined_choices(choices),
          .range = "",
          .synthetic_default = std::move(synthetic_default),
          .set =
              [=](Options& options, std::string_view text) {
                options.*field = static_cast<Enum>(parse_choice(option, text, choices));
              },
          .get =
              [=](const Options& options) {
                return choices[static_cast<std::size_t>(options.*field)];
              }};
}

OptionRow on_off(std::string name, bool Options::*field, std::string help) {
  const std::string option = "--" + name;
  return {.name = std::move(name),
          .placeholder = "on|off",
          .help = std::move(help),
          .allowed = "on or off",
          .range = "",
          .synthetic_default = "",
          .set =
              [=](Options& options, std::string_view text) {
                options.*field = parse_choice(option, text, {"on", "off"}) == 0;
              },
          .get = [=](const Options& options) { return options.*field ? "on" : "off"; }};
}

OptionRow text(std::string name, std::string Options::*field, std::string placeholder,
               std::string allowed, std::string help) {
  return {
      .name = std::move(name),
      .placeholder = std::move(placeholder),
      .help = std::move(help),
      .allowed = std::move(allowed),
      .range = "",
      .synthetic_default = "",
      .set = [=](Options& options, std::string_view value) { options.*field = std::string(value); },
      .get = [=](const Options& options) { return options.*field; }};
}

OptionRow action(std::string name, Options::Action value, std::string help) {
  return {.name = std::move(name),
          .placeholder = "",
          .help = std::move(help),
          .allowed = "",
          .range = "",
          .synthetic_default = "",
          .is_setting = false,
          .set = [=](Options& options, std::string_view) { options.action = value; },
          .get = [](const Options&) { return std::string(); }};
}

OptionRow model_row(const OptionContext& context) {
  OptionRow row = text("model", &Options::model, "NAME", "the name of a model",
                       fmt::format("the network: {}", fmt::join(context.models, ", ")));
  row.synthetic_default = "resnet20";
  row.set = [models = context.models](Options& options, std::string_view value) {
    if (!models.empty() && std::find(models.begin(), models.end(), value) == models.end()) {
      const std::string near = nearest(value, models);
      throw_error(ErrorKind::usage, "--model {}: unknown model; known: {}{}", shown(value),
                  fmt::join(models, ", "),
                  near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
    options.model = std::string(value);
  };
  return row;
}

OptionRow dataset_row(const OptionContext& context) {
  std::vector<std::string> names;
  for (const auto& [name, what] : context.datasets) names.push_back(name);
  OptionRow row = text("dataset", &Options::dataset, fmt::format("{}", fmt::join(names, "|")),
                       joined_choices(names),
                       "the data set; synthetic is built in and used without --data-dir; with "
                       "--data-dir the names of the folder's files decide; see the list below");
  row.set = [names](Options& options, std::string_view value) {
    options.dataset = names[parse_choice("--dataset", value, names)];
  };
  return row;
}

OptionRow compress_row(const OptionContext& context) {
  OptionRow row = text("compress", &Options::compress, "SPEC", "a codec, NAME[:key=value,...]",
                       "codec of the gradients, NAME[:key=value,...]; see the list below");
  row.set = [check = context.check_compress](Options& options, std::string_view value) {
    if (check) check(std::string(value));
    options.compress = std::string(value);
  };
  return row;
}

OptionRow topology_row(const OptionContext& context) {
  OptionRow row = text("topology", &Options::topology, "NAME", joined_choices(context.topologies),
                       fmt::format("who sends to whom: {}", fmt::join(context.topologies, ", ")));
  row.set = [names = context.topologies](Options& options, std::string_view value) {
    options.topology = names[parse_choice("--topology", value, names)];
  };
  return row;
}

OptionRow milestones_row() {
  constexpr RealRange kEpoch{.least = 0, .most = 100000, .is_least_allowed = false};
  return {.name = "lr-milestones",
          .placeholder = "X,X,...",
          .help =
              "for step: epochs after which the rate is multiplied by --lr-gamma; if not given, "
              "a half and three quarters of the run",
          .allowed = "increasing numbers joined by commas, each " + kEpoch.text(),
          .range = "",
          .synthetic_default = "",
          .set =
              [=](Options& options, std::string_view value) {
                options.lr_milestones = parse_increasing("--lr-milestones", value, kEpoch);
              },
          .get =
              [](const Options& options) {
                return fmt::format("{}", fmt::join(options.lr_milestones, ","));
              }};
}

// The two batch sizes are set by turns: 0 stands for "not this one".
OptionRow unset_at_zero(OptionRow row) {
  row.get = [get = row.get](const Options& options) {
    std::string value = get(options);
    return value == "0" ? "" : value;
  };
  return row;
}

OptionRow trace_steps_row() {
  constexpr WholeRange kFirst{0, 1'000'000'000}, kCount{1, 1000};
  const std::string allowed =
      fmt::format("FIRST:COUNT, FIRST from {} and COUNT from {}", kFirst.text(), kCount.text());
  return {
      .name = "trace-steps",
      .placeholder = "FIRST:COUNT",
      .help =
          "the steps that --trace shows: COUNT of them, after the first FIRST; 5:20 if not given",
      .allowed = allowed,
      .range = fmt::format("COUNT: {}", kCount.text()),
      .synthetic_default = "",
      .set =
          [=](Options& options, std::string_view value) {
            const std::size_t colon = std::min(value.find(':'), value.size());
            const std::string_view count = value.substr(std::min(colon + 1, value.size()));
            try {
              options.trace_first = parse_whole("", value.substr(0, colon), kFirst);
              options.trace_steps = parse_whole("", count, kCount);
            } catch (const Error&) {
              throw_error(ErrorKind::usage, "--trace-steps {}: must be {}", shown(value), allowed);
            }
          },
      .get =
          [](const Options& options) {
            return options.trace == "none"
                       ? std::string()
                       : fmt::format("{}:{}", options.trace_first, options.trace_steps);
          }};
}

OptionRow quiet_row() {
  OptionRow row = on_off("quiet", &Options::quiet, "print nothing but warnings and errors");
  row.placeholder = "";
  return row;
}

OptionRow bucket_row() {
  constexpr RealRange kRange = {.least = 0, .most = 4096, .is_least_allowed = false};
  return {.name = "bucket-mb",
          .placeholder = "X",
          .help =
              "how many gradients are sent together, in 10^6 bytes of fp32; auto: chosen from the "
              "measured rate and latency of the network, or 1 with --autotune off",
          .allowed = "auto or " + kRange.allowed(),
          .range = "auto, or " + kRange.text(),
          .synthetic_default = "",
          .set =
              [=](Options& options, std::string_view value) {
                if (value == "auto") {
                  options.bucket_mb = 0;
                  return;
                }
                try {
                  options.bucket_mb = parse_real("--bucket-mb", value, kRange);
                } catch (const Error&) {
                  throw_error(ErrorKind::usage, "--bucket-mb {}: must be auto or {}", shown(value),
                              kRange.allowed());
                }
              },
          .get =
              [](const Options& options) {
                return options.bucket_mb > 0 ? real_text(options.bucket_mb) : std::string("auto");
              }};
}

// There is one choice so far, so that no field is needed.
OptionRow optimizer_row() {
  return {.name = "optimizer",
          .placeholder = "sgd",
          .help = "update rule",
          .allowed = "sgd",
          .range = "",
          .synthetic_default = "",
          .set =
              [](Options&, std::string_view value) {
                static_cast<void>(parse_choice("--optimizer", value, {"sgd"}));
              },
          .get = [](const Options&) { return "sgd"; }};
}

OptionRow comm_timeout_row() {
  constexpr RealRange kRange = {.least = 1, .most = 86400};
  OptionRow row = real("comm-timeout", &Options::comm_timeout_s, kRange,
                       "seconds without any progress after which a silent rank ends the run");
  row.allowed += ", since a rank at work answers only a few times a second";
  row.set = [kRange, allowed = row.allowed](Options& options, std::string_view value) {
    try {
      options.comm_timeout_s = parse_real("--comm-timeout", value, kRange);
    } catch (const Error&) {
      throw_error(ErrorKind::usage, "--comm-timeout {}: must be {}", shown(value), allowed);
    }
  };
  return row;
}

OptionRow throttle_row() {
  OptionRow row = text("throttle", &Options::throttle, "RATE", kBitRates,
                       "limit what each rank sends and what it receives to this rate, such as "
                       "100mbit or 1gbit; off: no limit");
  row.set = [](Options& options, std::string_view value) {
    static_cast<void>(parse_bit_rate("--throttle", value));
    options.throttle = std::string(value);
  };
  return row;
}

OptionRow config_row() {
  OptionRow row = action("config", Options::Action::train,
                         "read options from an INI file of lines 'name = value'; the command line "
                         "wins");
  row.placeholder = "FILE";
  row.allowed = "the path of a file";
  return row;
}

}  // namespace

std::vector<OptionGroup> option_table(const OptionContext& context) {
  using O = Options;
  constexpr std::int64_t kMany = 1'000'000'000;
  return {
      {"Model and data",
       {model_row(context), dataset_row(context),
        text("data-dir", &O::data_dir, "PATH", "the path of a folder",
             "folder with the .bin files of CIFAR (experiments/get_cifar.sh downloads them), or "
             "with own images in the same layout; see below"),
        whole("limit-train", &O::limit_train, {0, kMany}, "use the first N training images; 0: all",
              "12800"),
        whole("limit-test", &O::limit_test, {0, kMany}, "use the first N test images; 0: all",
              "2000"),
        on_off("augment", &O::augment, "random crop and flip of the training images")}},
      {"Training",
       {whole("epochs", &O::epochs, {1, 100000}, "how often every training image is seen", "5"),
        unset_at_zero(
            whole("batch-size", &O::batch_size, {1, 65536}, "images per rank and step", "32")),
        unset_at_zero(whole("global-batch", &O::global_batch, {1, 16777216},
                            "images of all ranks per step, instead of --batch-size")),
        whole("seed", &O::seed, {0, 4294967295},
              "everything random follows from it; to repeat a run bit for bit, use the same "
              "choices of "
              "algorithms, too: --autotune off in both runs, or --autotune with the log of the "
              "first"),
        optimizer_row(),
        real("lr", &O::lr, {.least = 0, .most = 100, .is_least_allowed = false},
             "learning rate; the peak of the schedule", "0.2"),
        real("momentum", &O::momentum, {.least = 0, .most = 1, .is_most_allowed = false},
             "momentum of SGD"),
        real("weight-decay", &O::weight_decay, {.least = 0, .most = 1},
             "L2 penalty, added to the gradient"),
        on_off("nesterov", &O::nesterov, "Nesterov's momentum"),
        real("label-smoothing", &O::label_smoothing,
             {.least = 0, .most = 1, .is_most_allowed = false},
             "share of the target spread evenly over the classes"),
        real("clip-norm", &O::clip_norm, {.least = 0, .most = 1e6},
             "cut the gradient down to this L2 norm; 0: do not"),
        choice("lr-schedule", &O::lr_schedule, {"constant", "step", "cosine", "onecycle"},
               "course of the learning rate over the run", "onecycle"),
        milestones_row(),
        real("lr-gamma", &O::lr_gamma, {.least = 0, .most = 1, .is_least_allowed = false},
             "for step: factor at each milestone"),
        real("warmup-epochs", &O::warmup_epochs, {.least = 0, .most = 100000},
             "epochs over which the rate rises at the start; not with onecycle, which rises by "
             "itself"),
        choice("lr-scaling", &O::lr_scaling, {"none", "linear", "sqrt"},
               "multiply --lr by the number of ranks or by its square root")}},
      {"Exchange of gradients",
       {compress_row(context),
        whole("compress-warmup", &O::compress_warmup, {0, 100000},
              "number of epochs at the start in which gradients are sent in fp32; codecs with a "
              "ratio send 25 %, 6.25 %, ... of the values instead, down to their ratio"),
        text("compress-exclude", &O::compress_exclude, "NAME,...", "names of tensors, with * and ?",
             "tensors that are not compressed, by name: 'conv1.weight,linear.*'"),
        topology_row(context), bucket_row(),
        on_off("exchange", &O::exchange,
               "off: every rank trains its own model on its part of the data, to see what a step "
               "takes without a network"),
        on_off("overlap", &O::overlap, "exchange while the backward pass still computes"),
        throttle_row(), comm_timeout_row(),
        choice("check-replicas", &O::check_replicas, {"epoch", "step", "off"},
               "how often ranks compare hashes to prove that all hold the same bits")}},
      {"Machine",
       {choice("device", &O::device, {"auto", "cpu", "cuda"},
               "where to compute; auto: on a GPU where there is one"),
        choice("precision", &O::precision, {"fp32", "tf32", "bf16"},
               "arithmetic of the layers, tf32 on GPUs alone; the weights are fp32 always"),
        choice("gpu-exchange", &O::gpu_exchange, {"auto", "host", "device"},
               "where a GPU's gradients are encoded and added: by the host's processor or on the "
               "GPU; auto: whichever is measured to be faster"),
        whole("threads", &O::threads, {0, 1024},
              "compute threads per rank; 0: the rank's share of the host's cores"),
        whole("loader-threads", &O::loader_threads, {1, 64},
              "threads per rank that prepare images"),
        text("autotune", &O::autotune, "on|off|FILE.h5", "on, off or the path of a run's log",
             "how to choose algorithms and the size of buckets; on: by measurement at the start; "
             "off: by a fixed rule; FILE.h5: as the run with this log did, which was of the same "
             "model, precision, device and batch size")}},
      {"Output and configuration",
       {text("log", &O::log, "FILE.h5", "a path, auto or none",
             "the file of the run's log, which must not exist yet; auto: dptrain-DATE-TIME.h5 in "
             "this folder; "
             "none: no log"),
        whole("log-steps", &O::log_steps, {0, kMany}, "log a row every N steps; 0: per epoch only"),
        text("trace", &O::trace, "FILE.json", "a path or none",
             "write a file that shows what each rank does when, for ui.perfetto.dev or "
             "chrome://tracing: layers (on a GPU only the parts of a step), codecs, waits; it must "
             "not exist yet"),
        trace_steps_row(), quiet_row(), config_row(),
        action("print-config", O::Action::print_config,
               "print every option as resolved, as a file for --config, and end"),
        action("version", O::Action::version, "print the version and end"),
        action("help", O::Action::help, "print this and end")}}};
}

}  // namespace dp
