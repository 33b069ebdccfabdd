#include "app/options_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "app/option_names.hpp"
#include "app/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

OptionRow model_row(const OptionContext& context, Options& options) {
  OptionRow row = name_row("model", options.model, "model", context.models, "the network");
  row.synthetic_default = "resnet20";
  return row;
}

OptionRow dataset_row(const OptionContext& context, Options& options) {
  std::vector<std::string> names;
  for (const auto& [name, what] : context.datasets) names.push_back(name);
  OptionRow row = text_row(
      "dataset", options.dataset, fmt::format("{}", fmt::join(names, "|")), joined_choices(names),
      "the data set; synthetic is built in and used without --data-dir; with --data-dir "
      "the names of the folder's files decide; see the list below");
  row.shown_default = "synthetic";
  row.set = [names, &options](std::string_view value) {
    options.dataset = names[parse_choice("--dataset", value, names)];
  };
  return row;
}

OptionRow compress_row(const OptionContext& context, Options& options) {
  OptionRow row = text_row("compress", options.compress, "SPEC", "a codec, NAME[:key=value,...]",
                           "codec of the gradients, NAME[:key=value,...]; see the list below");
  row.set = [check = context.check_compress, &options](std::string_view value) {
    if (check) with_option_names(kDptrainNames, [&] { check(std::string(value)); });
    options.compress = std::string(value);
  };
  return row;
}

OptionRow topology_row(const OptionContext& context, Options& options) {
  OptionRow row =
      text_row("topology", options.topology, "NAME", joined_choices(context.topologies),
               fmt::format("who sends to whom: {}", fmt::join(context.topologies, ", ")));
  row.set = [names = context.topologies, &options](std::string_view value) {
    options.topology = names[parse_choice("--topology", value, names)];
  };
  return row;
}

OptionRow milestones_row(Options& options) {
  constexpr RealRange kEpoch{.least = 0, .most = 100000, .is_least_allowed = false};
  return {.name = "lr-milestones",
          .placeholder = "X,X,...",
          .help =
              "for step: epochs after which the rate is multiplied by --lr-gamma; if not given, "
              "a half and three quarters of the run",
          .allowed = "increasing numbers joined by commas, each " + kEpoch.text(),
          .set =
              [=, &options](std::string_view value) {
                options.lr_milestones = parse_increasing("--lr-milestones", value, kEpoch);
              },
          .get = [&options] { return fmt::format("{}", fmt::join(options.lr_milestones, ",")); }};
}

// The two batch sizes are set by turns: 0 stands for "not this one".
OptionRow unset_at_zero(OptionRow row) {
  row.get = [get = row.get] {
    std::string value = get();
    return value == "0" ? "" : value;
  };
  return row;
}

OptionRow trace_steps_row(Options& options) {
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
      .set =
          [=, &options](std::string_view value) {
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
          [&options] {
            return options.trace == "none"
                       ? std::string()
                       : fmt::format("{}:{}", options.trace_first, options.trace_steps);
          }};
}

OptionRow bucket_row(Options& options) {
  constexpr RealRange kRange = {.least = 0, .most = 4096, .is_least_allowed = false};
  return {.name = "bucket-mb",
          .placeholder = "X",
          .help =
              "how many gradients are sent together, in 10^6 bytes of fp32; auto: chosen from the "
              "measured rate and latency of the network, or 1 with --autotune off",
          .allowed = "auto or " + kRange.allowed(),
          .range = "auto, or " + kRange.text(),
          .set =
              [=, &options](std::string_view value) {
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
              [&options] {
                return options.bucket_mb > 0 ? real_text(options.bucket_mb) : std::string("auto");
              }};
}

// There is one choice so far, so that no field is needed.
OptionRow optimizer_row() {
  return {.name = "optimizer",
          .placeholder = "sgd",
          .help = "update rule",
          .allowed = "sgd",
          .set =
              [](std::string_view value) {
                static_cast<void>(parse_choice("--optimizer", value, {"sgd"}));
              },
          .get = [] { return "sgd"; }};
}

OptionRow comm_timeout_row(Options& options) {
  constexpr RealRange kRange = {.least = 1, .most = 86400};
  OptionRow row = real_row("comm-timeout", options.comm_timeout_s, kRange,
                           "seconds without any progress after which a silent rank ends the run");
  row.allowed += ", since a rank at work answers only a few times a second";
  row.set = [kRange, allowed = row.allowed, &options](std::string_view value) {
    try {
      options.comm_timeout_s = parse_real("--comm-timeout", value, kRange);
    } catch (const Error&) {
      throw_error(ErrorKind::usage, "--comm-timeout {}: must be {}", shown(value), allowed);
    }
  };
  return row;
}

// Its value is read before all others: options.cpp.
OptionRow config_row() {
  OptionRow row = call_row(
      "config", "read options from an INI file of lines 'name = value'; the command line wins",
      [] {});
  row.placeholder = "FILE";
  row.allowed = "the path of a file";
  return row;
}

OptionRow action_row(std::string name, Options::Action action, std::string help, Options& options) {
  return call_row(std::move(name), std::move(help),
                  [action, &options] { options.action = action; });
}

}  // namespace

OptionTable option_table(const OptionContext& context, Options& options) {
  constexpr std::int64_t kMany = 1'000'000'000;
  return {
      {"Model and data",
       {model_row(context, options), dataset_row(context, options),
        text_row(
            "data-dir", options.data_dir, "PATH", "the path of a folder",
            "folder with the .bin files of CIFAR (experiments/get_cifar.sh downloads them), or "
            "with own images in the same layout; see below"),
        whole_row("limit-train", options.limit_train, {0, kMany},
                  "use the first N training images; 0: all", "12800"),
        whole_row("limit-test", options.limit_test, {0, kMany},
                  "use the first N test images; 0: all", "2000"),
        on_off_row("augment", options.augment, "random crop and flip of the training images")}},
      {"Training",
       {whole_row("epochs", options.epochs, {1, 100000}, "how often every training image is seen",
                  "5"),
        unset_at_zero(whole_row("batch-size", options.batch_size, {1, 65536},
                                "images per rank and step", "32")),
        unset_at_zero(whole_row("global-batch", options.global_batch, {1, 16777216},
                                "images of all ranks per step, instead of --batch-size")),
        whole_row("seed", options.seed, {0, 4294967295},
                  "everything random follows from it; to repeat a run bit for bit, use the same "
                  "choices of "
                  "algorithms, too: --autotune off in both runs, or --autotune with the log of the "
                  "first"),
        optimizer_row(),
        real_row("lr", options.lr, {.least = 0, .most = 100, .is_least_allowed = false},
                 "learning rate; the peak of the schedule", "0.2"),
        real_row("momentum", options.momentum, {.least = 0, .most = 1, .is_most_allowed = false},
                 "momentum of SGD"),
        real_row("weight-decay", options.weight_decay, {.least = 0, .most = 1},
                 "L2 penalty, added to the gradient"),
        on_off_row("nesterov", options.nesterov, "Nesterov's momentum"),
        real_row("label-smoothing", options.label_smoothing,
                 {.least = 0, .most = 1, .is_most_allowed = false},
                 "share of the target spread evenly over the classes"),
        real_row("clip-norm", options.clip_norm, {.least = 0, .most = 1e6},
                 "cut the gradient down to this L2 norm; 0: do not"),
        choice_row("lr-schedule", options.lr_schedule, {"constant", "step", "cosine", "onecycle"},
                   "course of the learning rate over the run", "onecycle"),
        milestones_row(options),
        real_row("lr-gamma", options.lr_gamma, {.least = 0, .most = 1, .is_least_allowed = false},
                 "for step: factor at each milestone"),
        real_row("warmup-epochs", options.warmup_epochs, {.least = 0, .most = 100000},
                 "epochs over which the rate rises at the start; not with onecycle, which rises by "
                 "itself"),
        choice_row("lr-scaling", options.lr_scaling, {"none", "linear", "sqrt"},
                   "multiply --lr by the number of ranks or by its square root")}},
      {"Exchange of gradients",
       {compress_row(context, options),
        whole_row(
            "compress-warmup", options.compress_warmup, {0, 100000},
            "number of epochs at the start in which gradients are sent in fp32; codecs with a "
            "ratio send 25 %, 6.25 %, ... of the values instead, down to their ratio"),
        text_row("compress-exclude", options.compress_exclude, "NAME,...",
                 "names of tensors, with * and ?",
                 "tensors that are not compressed, by name: 'conv1.weight,linear.*'"),
        topology_row(context, options), bucket_row(options),
        on_off_row(
            "exchange", options.exchange,
            "off: every rank trains its own model on its part of the data, to see what a step "
            "takes without a network"),
        on_off_row("overlap", options.overlap, "exchange while the backward pass still computes"),
        rate_row("throttle", options.throttle,
                 "limit what each rank sends and what it receives to this rate, such as 100mbit or "
                 "1gbit; off: no limit"),
        comm_timeout_row(options),
        choice_row("check-replicas", options.check_replicas, {"epoch", "step", "off"},
                   "how often ranks compare hashes to prove that all hold the same bits")}},
      {"Machine",
       {choice_row("device", options.device, {"auto", "cpu", "cuda"},
                   "where to compute; auto: on a GPU where there is one"),
        choice_row("precision", options.precision, {"fp32", "tf32", "bf16"},
                   "arithmetic of the layers, tf32 on GPUs alone; the weights are fp32 always"),
        choice_row(
            "gpu-exchange", options.gpu_exchange, {"auto", "host", "device"},
            "where a GPU's gradients are encoded and added: by the host's processor or on the "
            "GPU; auto: whichever is measured to be faster"),
        whole_row("threads", options.threads, {0, 1024},
                  "compute threads per rank; 0: the rank's share of the host's cores"),
        whole_row("loader-threads", options.loader_threads, {1, 64},
                  "threads per rank that prepare images"),
        text_row(
            "autotune", options.autotune, "on|off|FILE.h5", "on, off or the path of a run's log",
            "how to choose algorithms and the size of buckets; on: by measurement at the start; "
            "off: by a fixed rule; FILE.h5: as the run with this log did, which was of the same "
            "model, precision, device and batch size")}},
      {"Output and configuration",
       {text_row(
            "log", options.log, "FILE.h5", "a path, auto or none",
            "the file of the run's log, which must not exist yet; auto: dptrain-DATE-TIME.h5 in "
            "this folder; "
            "none: no log"),
        whole_row("log-steps", options.log_steps, {0, kMany},
                  "log a row every N steps; 0: per epoch only"),
        text_row(
            "trace", options.trace, "FILE.json", "a path or none",
            "write a file that shows what each rank does when, for ui.perfetto.dev or "
            "chrome://tracing: layers (on a GPU only the parts of a step), codecs, waits; it must "
            "not exist yet"),
        trace_steps_row(options),
        flag_row("quiet", options.quiet, "print nothing but warnings and errors"), config_row(),
        action_row("print-config", Options::Action::print_config,
                   "print every option as resolved, as a file for --config, and end", options),
        action_row("version", Options::Action::version, "print the version and end", options),
        action_row("help", Options::Action::help, "print this and end", options)}}};
}

}  // namespace dp
