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
  row.help =
      "a named set of options, one of those of --help data; options that are given besides win "
      "over it";
  return row;
}

OptionRow dataset_row(const OptionContext& context, Options& options) {
  std::vector<std::string> names;
  for (const auto& [name, what] : context.datasets) names.push_back(name);
  OptionRow row = text_row(
      "dataset", options.dataset, fmt::format("{}", fmt::join(names, "|")), joined_choices(names),
      "the data set, one of the list below; without --data-dir it is synthetic, and with "
      "--data-dir the names of the files in the folder tell which it is");
  row.shown_default = "synthetic";
  row.set = [names, &options](std::string_view value) {
    options.dataset = names[parse_choice("--dataset", value, names)];
  };
  return row;
}

OptionRow compress_row(const OptionContext& context, Options& options) {
  OptionRow row =
      text_row("compress", options.compress.text, "SPEC", "a codec, NAME[:key=value,...]",
               "codec that compresses the gradients, NAME[:key=value,...]; "
               "see the lists of codecs and keys of --help exchange; "
               "fewest is ecq with the fewest bits that are expected to keep the loss; "
               "auto[:min=BITS,max=BITS,velocity=on|off] is ecq with as many bits a "
               "value as the link carries while backward computes, from 0.1 (0.35 with "
               "Adam) to 0.4 (to 1 without velocities), or a form without coding where "
               "that hides; on a "
               "CPU it sends velocities where the optimiser can leave its momentum to "
               "the exchange");
  row.set = [parse = context.parse_compress, &options](std::string_view value) {
    options.compress = parse ? with_option_names(kDptrainNames, [&] { return parse(value); })
                             : CompressChoice{.text = std::string(value)};
  };
  return row;
}

OptionRow topology_row(const OptionContext& context, Options& options) {
  OptionRow row = text_row("topology", options.topology, "NAME", joined_choices(context.topologies),
                           fmt::format("the topology, which says who sends to whom: {}",
                                       fmt::join(context.topologies, ", ")));
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
          .shown_default = "that of the data set",
          .set = [option, range,
                  &field](std::string_view value) { field = parse_colours(option, value, range); },
          .get = [&field] { return fmt::format("{}", fmt::join(field, ",")); }};
}

// An option of data set folder only.
OptionRow folder_row(OptionRow row) {
  return only_with(
      {.option = "dataset", .values = {"folder"}, .words = "images in folders (--dataset folder)"},
      std::move(row));
}

// An option with no use for training images that are scaled (--crop resized): it is not set then.
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
                                       "pixels by which an image is padded on each side before a "
                                       "part of its own size is cut out"),
                             options)),
          key_of({"on"}, padding_row(choice_row("fill", options.crop_fill, {"black", "reflect"},
                                                "what the padding shows; reflect: the image's "
                                                "mirror image"),
                                     options)),
          key_of({"on"}, choice_row("flip", options.flip, {"random", "alternate", "off"},
                                    "which images are mirrored; random: half of them in each "
                                    "epoch; alternate: half of them in one epoch, the others in "
                                    "the next")),
          key_of({"on"}, whole_row("cutout", options.cutout, {0, 4096},
                                   "side of a square at a random place, in pixels, that is set to "
                                   "the mean colour; 0: none"))};
}

// Only one of the two batch sizes is set: 0 stands for "not this one".
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
                              "with --init: the weights of the epoch with the best test accuracy, "
                              "or of the last epoch"));
}

OptionRow bucket_row(Options& options) {
  constexpr RealRange kRange = {.least = 0, .most = 4096, .is_least_allowed = false};
  return {.name = "bucket-mb",
          .placeholder = "X",
          .help =
              "size of a bucket of gradients, which are sent together, in 10^6 bytes of "
              "fp32; auto: the size follows from the measured rate and latency of the "
              "network; with --autotune off it is 1, and more at 0.1 bits a value or fewer",
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
  OptionRow row =
      real_row("comm-timeout", options.comm_timeout_s, kRange,
               "the run ends with an error if a rank is silent for this number of seconds");
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

OptionRow device_row(Options& options) {
  OptionRow row = choice_row("device", options.device, {"auto", "cpu", "cuda"},
                             "where to compute; auto: on a GPU if there is one");
  row.set = [set = row.set](std::string_view value) {
    if (value == "gpu") {
      throw_error(ErrorKind::usage, "--device gpu: must be auto, cpu or cuda; did you mean cuda?");
    }
    set(value);
  };
  return row;
}

// --config is read before all other options: options.cpp.
OptionRow config_row() {
  OptionRow row =
      call_row("config",
               "read options from an INI file with lines 'name = value'; options on the command "
               "line win over them",
               [] {});
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
                             "print the options that most runs need, all, or those of a topic, "
                             "then end",
                             options);
  row.placeholder = "[all|TOPIC]";
  row.has_optional_value = true;
  return row;
}

OptionRow check_row(Options& options) {
  return action_row("check", Options::Action::check,
                    "try out hosts, network, memory, disk and data for a run with these options, "
                    "report what was found, then end",
                    options);
}

// The options that decide what a run prints and writes, and the options that concern only this call
// of the program.
std::vector<OptionRow> output_and_calls(Options& options) {
  std::vector<OptionRow> rows = output_rows(options);
  for (OptionRow& row : std::vector<OptionRow>{
           config_row(),
           action_row("print-config", Options::Action::print_config,
                      "print all options with their final values as a file for --config, "
                      "then end",
                      options),
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
        text_row(
            "data-dir", options.data_dir, "PATH", "the path of a folder",
            "a folder with images in a folder for each class, or a pack of them; or the folder "
            "with the .bin files of CIFAR, which " +
                shipped_script("get_cifar.sh") + " downloads; see --help data"),
        whole_row("limit-train", options.limit_train, {0, kMany},
                  "use only the first N training images; 0: use all", "12800"),
        whole_row("limit-test", options.limit_test, {0, kMany},
                  "use only the first N test images; 0: use all", "2000"),
        keyed_row(on_off_row("augment", options.augment, "change the training images at random"),
                  keys_of_augment, options),
        colours_row("mean", options.mean, {.least = 0, .most = 1},
                    "mean of red, green and blue for values from 0 to 1, which is subtracted; data "
                    "set folder measures it"),
        colours_row("std", options.deviation, {.least = 0, .most = 10, .is_least_allowed = false},
                    "standard deviation by which they are then divided"),
        choice_row("test-augment", options.test_augment, {"off", "mirror", "shift"},
                   "at the end, evaluate also the mean of the logits of each test image and its "
                   "mirror image (mirror), and of both moved by one pixel (shift)"),
        text_row("init", options.init, "FILE.h5", "a path or none",
                 "begin with the weights in this file, which --export or " +
                     shipped_script("weights.py") +
                     " has written; none: begin with random weights"),
        init_from_row(options),
        only_with(
            kWithInit,
            text_row(
                "init-except", options.init_except, "NAME,...", "names of tensors, with * and ?",
                "with --init: names of tensors that begin with random weights, such as 'linear.*' "
                "for another number of classes"))},
       "data"},
      {"Images in folders (data set folder)",
       {folder_row(whole_row("image-size", options.image_size, {0, 4096},
                             "side of the square that the network sees; 0: that of the images, if "
                             "they are squares of one size up to 64, otherwise 224")),
        folder_row(
            choice_row("crop", options.crop, {"auto", "pad", "resized"},
                       "pad: training images are padded as --augment says and cut; "
                       "resized: a random part is scaled to the network's size; auto: pad if all "
                       "images have the network's size, otherwise resized")),
        folder_row(real_row("validation-share", options.validation_share,
                            {.least = 0, .most = 1, .is_most_allowed = false},
                            "share of each class that is taken for testing if the folder has "
                            "neither val nor test; 0: 0.1")),
        folder_row(whole_row("split-seed", options.split_seed, {0, 4294967295},
                             "another seed takes other images for testing")),
        folder_row(choice_row("bad-images", options.bad_images, {"fail", "skip"},
                              "what happens if an image cannot be read; skip: those with a bad "
                              "header are left out, and for those that turn out to be damaged "
                              "later the next image of their class stands in"))},
       "folders"},
      {"Training",
       {whole_row("epochs", options.epochs, {0, 100000},
                  "number of times that the run goes through all training images; 0: only "
                  "evaluate the weights of --init on the test images",
                  "5"),
        unset_at_zero(whole_row("batch-size", options.batch_size, {1, 65536},
                                "number of images per rank and step", "32")),
        unset_at_zero(whole_row("global-batch", options.global_batch, {1, 16777216},
                                "number of images of all ranks together per step; give "
                                "it instead of --batch-size")),
        unset_at_zero(whole_row("planned-ranks", options.planned_ranks, {1, 65536},
                                "number of ranks that --batch-size and --lr-scaling count with "
                                "when a run begins, if not all of them are there yet; dptrun "
                                "gives it; without it those that are there")),
        whole_row("accumulate", options.accumulate, {1, 4096},
                  "number of parts in which a rank computes a step's batch, one after the other, "
                  "before gradients are exchanged once; --batch-size is then the size of a part, "
                  "so that a step has N times as many images"),
        batch_schedule_row(options),
        parsed_row("shares", options.shares, parse_share_choice, "even|auto[:min=N]|A:B:C...",
                   kShareChoices,
                   "how ranks divide the images of a step: by measured speed (auto; at least N "
                   "images a rank, without min=N a quarter of an even share, but no more than 8), "
                   "evenly, or by these weights, one for each rank; without this option auto, or "
                   "even with --autotune off"),
        on_off_row("sync-bn", options.sync_bn,
                   "on: batch normalisation takes mean and deviation over the images of all ranks "
                   "instead of each rank's own, which costs two short messages to every rank for "
                   "each such layer and step; for small batches"),
        whole_row("seed", options.seed, {0, 4294967295},
                  "all random numbers follow from the seed; a run is repeated bit for "
                  "bit if its algorithms are the same, too: give --autotune off to both "
                  "runs (which is not enough with --compress auto, --sync-every auto and --shares "
                  "auto), or the log of the first to --autotune of the second")},
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
                      "number of epochs at the start in which gradients are sent in fp32; codecs "
                      "with a ratio send 25 %, then 6.25 %, ... of the values instead, until they "
                      "reach their ratio")),
        text_row("compress-exclude", options.compress_exclude, "NAME,...",
                 "names of tensors, with * and ?",
                 "names of tensors that are not compressed, such as 'conv1.weight,linear.*'"),
        topology_row(context, options), bucket_row(options),
        on_off_row("exchange", options.exchange,
                   "off: ranks exchange nothing, and each trains a model of its own on its part "
                   "of the data; this shows how long a step takes without a network"),
        on_off_row("overlap", options.overlap,
                   "exchange gradients while the backward pass still computes others"),
        rate_row("throttle", options.throttle,
                 "limit what each rank sends and what it receives to this rate, such as 100mbit or "
                 "1gbit; off: no limit"),
        comm_timeout_row(options),
        choice_row("check-replicas", options.check_replicas, {"epoch", "step", "off"},
                   "how often ranks compare hashes to prove that all hold the same bits")},
       "exchange"},
      {"Exchange in rounds", round_rows(options), "rounds"},
      {"Machine",
       {device_row(options),
        choice_row("precision", options.precision, {"fp32", "tf32", "bf16"},
                   "arithmetic of the layers; tf32 is for GPUs only; the weights are always fp32"),
        choice_row("gpu-exchange", options.gpu_exchange, {"auto", "host", "device"},
                   "where the gradients of a GPU are encoded and added: on the host's processor "
                   "or on the GPU; auto: where it is measured to be faster"),
        whole_row("threads", options.threads, {0, 1024},
                  "number of compute threads per rank; 0: the rank's share of the host's cores"),
        whole_row("loader-threads", options.loader_threads, {0, 64},
                  "number of threads per rank that prepare images; 0: 1, for images in files half "
                  "of the rank's cores, with a GPU all of them, up to 16"),
        text_row("autotune", options.autotune, "on|off|FILE.h5",
                 "on, off or the path of a run's log",
                 "how algorithms and the size of buckets are chosen; on: by measurement at "
                 "the start; off: by a fixed rule; FILE.h5: as in the run that wrote this "
                 "log, which must have had the same model, precision, device and batch size")},
       "machine"},
      {"Checkpoints", checkpoint_rows(options), "checkpoints"},
      {"Before a run", {check_row(options), plan_row(context, options)}, "plan"},
      {"Output and configuration", output_and_calls(options), "output"}};
  bind_conditions(table);
  return table;
}

}  // namespace dp
