// First come functions that make single rows, then option_table(): all groups in the order of
// --help. The rows of some groups are in files of their own (options_optimizer.cpp and others).
#include "app/options/options_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "app/options/options_checkpoint.hpp"
#include "app/options/options_keyed.hpp"
#include "app/options/options_optimizer.hpp"
#include "app/options/options_output.hpp"
#include "app/options/options_plan.hpp"
#include "app/options/options_rounds.hpp"
#include "app/options/options_schedule.hpp"
#include "app/options/options_values.hpp"
#include "app/options/recipes.hpp"
#include "app/process/option_names.hpp"
#include "io/files/shipped_script.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

OptionRow model_row(const OptionContext& context, Options& options) {
  OptionRow row = name_row("model", options.model, "model", context.models, "the network to train");
  row.synthetic_default = "resnet20";
  return row;
}

OptionRow recipe_row(const OptionContext& context, Options& options) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes_for(context.models)) names.push_back(recipe.name);
  OptionRow row = name_row("recipe", options.recipe, "recipe", names, "");
  row.help = "a named set of options (--help data lists them); other given options win";
  return row;
}

OptionRow dataset_row(const OptionContext& context, Options& options) {
  std::vector<std::string> names;
  for (const auto& [name, what] : context.datasets) names.push_back(name);
  OptionRow row = text_row(
      "dataset", options.dataset, fmt::format("{}", fmt::join(names, "|")), joined_choices(names),
      "the data set, from the list below; if not given, detected from the files in --data-dir");
  row.shown_default = "synthetic";
  row.set = [names, &options](std::string_view value) {
    options.dataset = names[parse_choice("--dataset", value, names)];
  };
  return row;
}

OptionRow compress_row(const OptionContext& context, Options& options) {
  OptionRow row =
      text_row("compress", options.compress.text, "SPEC", "a codec, NAME[:key=value,...]",
               "codec of the gradients, NAME[:key=value,...]: --help exchange lists codecs and "
               "keys; fewest: ecq with the fewest bits that should keep the loss; "
               "auto[:min=BITS,max=BITS,velocity=on|off]: ecq with the bits per value that the "
               "link carries during backward, from 0.1 (0.35 with Adam) to 0.4 (1 without "
               "velocities), or an uncoded form if it hides; on a CPU it sends velocities if the "
               "optimiser can leave its momentum to the exchange");
  row.set = [parse = context.parse_compress, &options](std::string_view value) {
    options.compress = parse ? with_option_names(kDptrainNames, [&] { return parse(value); })
                             : CompressChoice{.text = std::string(value)};
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

// Mean or deviation of the three colours.
OptionRow colours_row(std::string name, std::vector<double>& field, RealRange range,
                      std::string help) {
  const std::string option = "--" + name;
  return {.name = std::move(name),
          .placeholder = "R,G,B",
          .help = std::move(help),
          .allowed = "three numbers joined by commas, each " + range.text(),
          .range = "each " + range.text(),
          .shown_default = "the data set's",
          .set = [option, range,
                  &field](std::string_view value) { field = parse_colours(option, value, range); },
          .get = [&field] { return fmt::format("{}", fmt::join(field, ",")); }};
}

// An option for --dataset folder only.
OptionRow folder_row(OptionRow row) {
  return only_with(
      {.option = "dataset", .values = {"folder"}, .words = "images in folders (--dataset folder)"},
      std::move(row));
}

// An option that has no use, and so no value, if training images are scaled (--crop resized).
OptionRow padding_row(OptionRow row, const Options& options) {
  row.only_with = {.option = "crop", .others = {"resized"}, .words = "--crop pad or auto"};
  row.get = [get = row.get, &options] {
    const bool is_scaled = options.is_folder() && options.crop == Options::Crop::resized;
    return is_scaled ? std::string() : get();
  };
  return row;
}

std::vector<OptionRow> keys_of_augment(Options& options) {
  return {key_of({"on"},
                 padding_row(whole_row("padding", options.crop_padding, {0, 127},
                                       "padding on each side, in pixels, before a random crop to "
                                       "the original size"),
                             options)),
          key_of({"on"}, padding_row(choice_row("fill", options.crop_fill, {"black", "reflect"},
                                                "contents of the padding; reflect: the mirrored "
                                                "image"),
                                     options)),
          key_of({"on"}, choice_row("flip", options.flip, {"random", "alternate", "off"},
                                    "mirrored images; random: half of them in each epoch; "
                                    "alternate: half in one epoch, the others in the next")),
          key_of({"on"}, whole_row("cutout", options.cutout, {0, 4096},
                                   "side of a random square set to the mean colour, in pixels; 0: "
                                   "none"))};
}

// Only one of the two batch sizes has a value. The field of the other one is 0.
OptionRow unset_at_zero(OptionRow row) {
  row.get = [get = row.get] {
    std::string value = get();
    return value == "0" ? "" : value;
  };
  return row;
}

const OnlyWith kWithInit = {.option = "init", .others = {"none"}, .words = "--init FILE.h5"};

OptionRow init_from_row(Options& options) {
  return only_with(kWithInit,
                   choice_row("init-from", options.init_from, {"best", "last"},
                              "with --init: the weights of the best or of the last epoch"));
}

OptionRow bucket_row(Options& options) {
  constexpr RealRange kRange = {.least = 0, .most = 4096, .is_least_allowed = false};
  return {.name = "bucket-mb",
          .placeholder = "X",
          .help =
              "size of a bucket in 10^6 bytes of fp32 gradients; auto: from the measured network "
              "(with --autotune off: 1, or more at 0.1 bits per value or fewer)",
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

OptionRow comm_timeout_row(Options& options) {
  constexpr RealRange kRange = {.least = 1, .most = 86400};
  OptionRow row = real_row("comm-timeout", options.comm_timeout_s, kRange,
                           "end with an error if a rank is silent for this many seconds");
  row.allowed += ", because a busy rank answers only a few times a second";
  row.set = [kRange, allowed = row.allowed, &options](std::string_view value) {
    try {
      options.comm_timeout_s = parse_real("--comm-timeout", value, kRange);
    } catch (const Error&) {
      throw_error(ErrorKind::usage, "--comm-timeout {}: must be {}", shown(value), allowed);
    }
  };
  return row;
}

OptionRow device_row(Options& options) {
  OptionRow row = choice_row("device", options.device, {"auto", "cpu", "cuda"},
                             "the device; auto: a GPU if there is one");
  row.set = [set = row.set](std::string_view value) {
    if (value == "gpu") {
      throw_error(ErrorKind::usage, "--device gpu: must be auto, cpu or cuda; did you mean cuda?");
    }
    set(value);
  };
  return row;
}

// --config is read before all other options (options.cpp).
OptionRow config_row() {
  OptionRow row =
      call_row("config", "read options from this INI file; the command line wins over it", [] {});
  row.placeholder = "FILE";
  row.allowed = "the path of a file";
  return row;
}

OptionRow action_row(std::string name, Options::Action action, std::string help, Options& options) {
  return call_row(std::move(name), std::move(help),
                  [action, &options] { options.action = action; });
}

OptionRow help_row(Options& options) {
  OptionRow row = action_row("help", Options::Action::help,
                             "print options (most used, all or a topic's), then end", options);
  row.placeholder = "[all|TOPIC]";
  row.has_optional_value = true;
  return row;
}

OptionRow check_row(Options& options) {
  return action_row("check", Options::Action::check,
                    "test hosts, network, memory, disk and data for this run, then end", options);
}

// The options that decide what a run prints and writes, and the options that concern only this call
// of the program.
std::vector<OptionRow> output_and_calls(Options& options) {
  std::vector<OptionRow> rows = output_rows(options);
  for (OptionRow& row : std::vector<OptionRow>{
           config_row(),
           action_row("print-config", Options::Action::print_config,
                      "print all resolved options as a file for --config, then end", options),
           action_row("version", Options::Action::version, "print the version, then end", options),
           help_row(options)}) {
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

OptionTable option_table(const OptionContext& context, Options& options) {
  constexpr std::int64_t kMany = 1'000'000'000;
  OptionTable table = {
      {"Model and data",
       {recipe_row(context, options), model_row(context, options), dataset_row(context, options),
        text_row("data-dir", options.data_dir, "PATH", "the path of a folder",
                 "your images (one folder per class, or a pack), or the folder of CIFAR's .bin "
                 "files (from " +
                     shipped_script("get_cifar.sh") + "); see --help data"),
        whole_row("limit-train", options.limit_train, {0, kMany},
                  "use only the first N training images; 0: use all", "12800"),
        whole_row("limit-test", options.limit_test, {0, kMany},
                  "use only the first N test images; 0: use all", "2000"),
        keyed_row(on_off_row("augment", options.augment, "augment the training images at random"),
                  keys_of_augment, options),
        colours_row("mean", options.mean, {.least = 0, .most = 1},
                    "mean of red, green and blue (values 0 to 1) to subtract; measured for data "
                    "set folder"),
        colours_row("std", options.deviation, {.least = 0, .most = 10, .is_least_allowed = false},
                    "standard deviation of red, green and blue to divide by"),
        choice_row("test-augment", options.test_augment, {"off", "mirror", "shift"},
                   "at the end, also evaluate with averaged logits; mirror: over each test image "
                   "and its mirror image; shift: also over both images shifted by one pixel"),
        text_row("init", options.init, "FILE.h5", "a path or none",
                 "initial weights: a file that --export or " + shipped_script("weights.py") +
                     " has written; none: random weights"),
        init_from_row(options),
        only_with(
            kWithInit,
            text_row("init-except", options.init_except, "NAME,...",
                     "names of tensors, with * and ?",
                     "with --init: tensors that begin with random weights, such as 'linear.*' for "
                     "other classes"))},
       "data"},
      {"Images in folders (data set folder)",
       {folder_row(whole_row("image-size", options.image_size, {0, 4096},
                             "side of the network's square input; 0: the images' side if they are "
                             "squares of one size up to 64, otherwise 224")),
        folder_row(
            choice_row("crop", options.crop, {"auto", "pad", "resized"},
                       "crop of training images; pad: pad and crop (--augment); resized: scale a "
                       "random part to the network's size; auto: pad if all images have that "
                       "size, otherwise resized")),
        folder_row(real_row("validation-share", options.validation_share,
                            {.least = 0, .most = 1, .is_most_allowed = false},
                            "test images as a fraction of each class, without val and test "
                            "folders; 0: 0.1")),
        folder_row(whole_row("split-seed", options.split_seed, {0, 4294967295},
                             "seed for the choice of test images")),
        folder_row(choice_row("bad-images", options.bad_images, {"fail", "skip"},
                              "handling of an image that cannot be read; skip: leave it out if its "
                              "header is bad, otherwise use the next image of its class"))},
       "folders"},
      {"Training",
       {whole_row("epochs", options.epochs, {0, 100000},
                  "passes through the training images; 0: only evaluate the weights of --init",
                  "5"),
        unset_at_zero(whole_row("batch-size", options.batch_size, {1, 65536},
                                "images per rank and step", "32")),
        unset_at_zero(whole_row("global-batch", options.global_batch, {1, 16777216},
                                "images of all ranks per step; instead of --batch-size")),
        unset_at_zero(
            whole_row("planned-ranks", options.planned_ranks, {1, 65536},
                      "number of ranks that --batch-size and --lr-scaling assume in a new "
                      "run, even if some ranks are still missing; set by dptrun")),
        whole_row("accumulate", options.accumulate, {1, 4096},
                  "parts of a step, computed one after the other before one exchange; a step then "
                  "has N x --batch-size images per rank"),
        batch_schedule_row(options),
        parsed_row("shares", options.shares, parse_share_choice, "even|auto[:min=N]|A:B:C...",
                   kShareChoices,
                   "how ranks divide a step's images: by measured speed (auto; at least N images "
                   "per rank, without min=N a quarter of an even share, at most 8), evenly, or by "
                   "weights, one per rank; default with --autotune off: even"),
        on_off_row("sync-bn", options.sync_bn,
                   "batch normalisation over the images of all ranks, for small batches; costs "
                   "two short messages to every rank per such layer and step"),
        whole_row("seed", options.seed, {0, 4294967295},
                  "seed of all random numbers; to repeat a run bit for bit, also give its log to "
                  "--autotune, or --autotune off to both runs (not enough with --compress auto, "
                  "--sync-every auto and --shares auto)")},
       "training"},
      {"Optimiser", optimizer_rows(options), "optimizer"},
      {"Learning rate", schedule_rows(options), "lr"},
      {"Exchange of gradients",
       {compress_row(context, options),
        only_with(
            {.option = "compress",
             .others = {"none"},
             .words = "--compress CODEC",
             .may_be_default = true},
            whole_row("compress-warmup", options.compress_warmup, {0, 100000},
                      "epochs at the start with gradients in fp32; codecs with a ratio send 25 %, "
                      "6.25 %, ... of the values instead, down to their ratio")),
        text_row("compress-exclude", options.compress_exclude, "NAME,...",
                 "names of tensors, with * and ?",
                 "tensors that are not compressed, such as 'conv1.weight,linear.*'"),
        topology_row(context, options), bucket_row(options),
        on_off_row("exchange", options.exchange,
                   "off: each rank trains its own model on its part of the data, to show a step's "
                   "time without a network"),
        on_off_row("overlap", options.overlap, "exchange gradients during the backward pass"),
        rate_row("throttle", options.throttle,
                 "limit each rank's sending and receiving rate; off: no limit"),
        comm_timeout_row(options),
        choice_row("check-replicas", options.check_replicas, {"epoch", "step", "off"},
                   "how often ranks compare hashes of their replicas")},
       "exchange"},
      {"Exchange in rounds", round_rows(options), "rounds"},
      {"Machine",
       {device_row(options),
        choice_row("precision", options.precision, {"fp32", "tf32", "bf16"},
                   "arithmetic of the layers (tf32: GPUs only); weights are always fp32"),
        choice_row("gpu-exchange", options.gpu_exchange, {"auto", "host", "device"},
                   "where a GPU's gradients are encoded and added; auto: the faster one"),
        whole_row("threads", options.threads, {0, 1024},
                  "compute threads per rank; 0: its share of the cores"),
        whole_row("loader-threads", options.loader_threads, {0, 64},
                  "image-loading threads per rank; 0: one, but for image files half of the rank's "
                  "cores (all cores with a GPU), up to 16"),
        text_row("autotune", options.autotune, "on|off|FILE.h5",
                 "on, off or the path of a run's log",
                 "choice of algorithms and bucket size; on: measure at the start; off: a fixed "
                 "rule; FILE.h5: as in this log's run (same model, precision, device and batch "
                 "size)")},
       "machine"},
      {"Checkpoints", checkpoint_rows(options), "checkpoints"},
      {"Before a run", {check_row(options), plan_row(context, options)}, "plan"},
      {"Output and configuration", output_and_calls(options), "output"}};
  bind_conditions(table);
  return table;
}

}  // namespace dp
