// The options of dptrain: one table (options_table.cpp), from which parsing, --help,
// --print-config, the configuration file and the run log's /config attributes are made.
//
// An option's value comes from one of four layers; the highest wins: command line, configuration
// file (INI: "name = value" lines, # or ; for comments), recipe (recipes.hpp), default. Some
// defaults differ for the built-in synthetic data set, so that a run without any option ends in
// minutes.
//
// Bad input is Error(usage) with one sentence that names the option, the value and what is allowed,
// and suggests the nearest name for a likely misspelling. Nothing here touches MPI, the data or the
// log. A file that an option names is opened by the code that uses the option.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/options/batch_schedule.hpp"
#include "app/options/options_plan.hpp"
#include "app/options/options_values.hpp"
#include "app/options/round_schedule.hpp"
#include "app/options/share_choice.hpp"
#include "comm/rate/compress_choice.hpp"
#include "io/images/augment.hpp"

namespace dp {

// How often a checkpoint is written: exactly one of the three is set.
struct CheckpointCadence {
  std::size_t epochs = 0, steps = 0;
  double seconds = 0;
  std::string given = {};  // the value as text
};

// The field initialisers are the defaults. Enumerators are named like the values on the command
// line, except for words that C++ reserves ("auto").
struct Options {
  enum class Optimizer { sgd, adam, adamw, lars, muon };
  enum class LrSchedule { constant, step, cosine, onecycle, triangular, poly };
  enum class LrInterval { step, epoch };
  enum class LrScaling { none, linear, sqrt };
  enum class Device { automatic, cpu, cuda };
  enum class Precision { fp32, tf32, bf16 };
  enum class GpuExchange { automatic, host, device };
  enum class TestAugment { off, mirror, shift };
  enum class InitFrom { best, last };
  enum class ReplicaCheck { epoch, step, off };
  enum class Crop { automatic, pad, resized };
  enum class CropFill { black, reflect };
  enum class BadImages { fail, skip };
  enum class ProgressForm { text, json };
  enum class Action { train, check, plan, help, version, print_config };

  std::string recipe;  // empty: none
  std::string model = "resnet18";
  std::string dataset = "cifar10";
  std::string data_dir;          // empty with the synthetic data set, and only then
  std::int64_t limit_train = 0;  // 0: all
  std::int64_t limit_test = 0;
  bool augment = true;
  // The next four apply with `augment`.
  std::int64_t crop_padding = 4;  // pixels on each side
  CropFill crop_fill = CropFill::black;
  AugmentationRule::Flip flip = AugmentationRule::Flip::random;
  std::int64_t cutout = 0;              // pixels; 0: none
  std::vector<double> mean, deviation;  // of red, green, blue; empty: the data set's own
  // The next five apply to the data set folder.
  std::int64_t image_size = 0;  // 0: from the images
  Crop crop = Crop::automatic;
  double validation_share = 0;  // 0: 0.1 if there are no test images
  std::int64_t split_seed = 0;
  BadImages bad_images = BadImages::fail;
  TestAugment test_augment = TestAugment::off;
  std::string init = "none";  // a file of weights, or "none"
  InitFrom init_from = InitFrom::best;
  std::string init_except;         // patterns joined by commas; empty: none
  std::int64_t epochs = 30;        // 0: only evaluate the weights of `init`
  std::int64_t batch_size = 128;   // per rank; 0 when global_batch is given
  std::int64_t global_batch = 0;   // 0: batch_size x ranks x accumulate
  std::int64_t planned_ranks = 0;  // ranks that the batch is computed for; 0: this run's ranks
  std::int64_t accumulate = 1;     // parts of a rank's batch
  BatchSchedule batch_schedule;
  ShareChoice shares;
  bool sync_bn = false;
  std::int64_t seed = 1;

  Optimizer optimizer = Optimizer::sgd;
  double lr = 0.1;  // the peak, before lr_scaling
  double momentum = 0.9;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double lars_trust = 0.001;
  double muon_lr = 0.24, muon_momentum = 0.6;
  bool muon_linear = false;
  double weight_decay = 5e-4;
  std::string no_decay;  // patterns joined by commas; empty: none
  // Patterns and factors.
  std::vector<std::pair<std::string, double>> lr_factors, decay_factors;
  double label_smoothing = 0;
  double clip_norm = 0;              // 0: no clipping
  double ema = 0;                    // decay; 0: off
  std::int64_t lookahead_every = 0;  // 0: off
  double lookahead_share = 0.5;      // 0: "ramp"
  LrSchedule lr_schedule = LrSchedule::cosine;
  std::vector<double> lr_milestones;  // epochs, increasing; filled for step, else empty
  double lr_gamma = 0.1;
  double lr_start = 0.2, lr_peak_at = 0.23, lr_end = 0.07;  // triangular
  double lr_power = 2;                                      // poly
  LrInterval lr_interval = LrInterval::step;
  double warmup_epochs = 0;
  LrScaling lr_scaling = LrScaling::none;

  CompressChoice compress;
  std::string compress_exclude;      // patterns joined by commas; empty: none
  std::int64_t compress_warmup = 0;  // epochs
  std::string topology = "ring";
  double bucket_mb = 0;  // 10^6 bytes of fp32 gradient; 0: from a measurement of the network
  RoundSchedule sync_every;
  std::int64_t sync_delay = 0;
  double outer_lr = 1, outer_momentum = 0;
  bool exchange = true;
  bool overlap = true;
  BitRate throttle;
  double comm_timeout_s = 60;
  ReplicaCheck check_replicas = ReplicaCheck::epoch;

  Device device = Device::automatic;
  Precision precision = Precision::fp32;
  GpuExchange gpu_exchange = GpuExchange::automatic;
  std::int64_t threads = 0;         // per rank; 0: the rank's share of the host's cores
  std::int64_t loader_threads = 0;  // 0: by the data set and the rank's cores
  std::string autotune = "on";      // "on", "off", or the path of an earlier run's log

  std::string log = "auto";          // a path, "none", or "auto": RunLog::create()
  std::int64_t log_steps = 0;        // 0: no rows per step
  std::string export_file = "none";  // a path, or "none"
  std::string trace = "none";        // a path, or "none"
  std::string tensorboard = "none";  // a folder, or "none"
  std::int64_t trace_first = 5, trace_steps = 20;
  std::string checkpoint = "none";  // a folder, or "none"
  CheckpointCadence checkpoint_every = {.epochs = 1, .given = "1epoch"};
  std::int64_t checkpoint_keep = 2;
  bool resume = false, accept_build = false;
  bool quiet = false, verbose = false;
  ProgressForm progress = ProgressForm::text;
  PlanOptions plan;
  Action action = Action::train;

  // The number of ranks that decides the batch and the learning rate of a new run on `ranks` ranks.
  [[nodiscard]] std::int64_t planned_ranks_of(std::int64_t ranks) const {
    return planned_ranks > 0 ? planned_ranks : ranks;
  }
  // The global batch with this number of ranks. Throws Error(usage) if it leaves a rank without
  // samples.
  [[nodiscard]] std::int64_t global_batch_of(std::int64_t ranks) const;

  // Whether shares follow measurements. Even with --shares auto, all shares stay equal if ranks
  // train alone. They also stay equal if the batch changes during the run, because a measurement
  // holds for one batch size.
  [[nodiscard]] bool measures_shares() const {
    return shares.is_auto() && exchange && !sync_every.has_rounds() &&
           batch_schedule.kind == BatchSchedule::Kind::fixed;
  }

  // Whether the data set is the built-in one, which has defaults of its own.
  [[nodiscard]] bool is_synthetic() const { return dataset == "synthetic"; }

  // Whether the data set consists of image files. The images may have any size.
  [[nodiscard]] bool is_folder() const { return dataset == "folder"; }

  [[nodiscard]] bool has_checkpoints() const { return checkpoint != "none"; }

  [[nodiscard]] bool measures_algorithms() const { return autotune == "on"; }
  [[nodiscard]] bool takes_choices_from_a_log() const {
    return autotune != "on" && autotune != "off";
  }

  // Settings that are allowed but probably not meant, a sentence each.
  [[nodiscard]] std::vector<std::string> warnings() const;

  // Name (without dashes) and resolved value of every option, in the table's order; the value is
  // empty if the option is not set.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> resolved() const;
  // The options that differ from their defaults. Some defaults depend on the data set.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> changed() const;
};

// Names and functions of other folders that the options need.
struct OptionContext {
  std::vector<std::string> models;  // for --model; empty: everything is accepted
  // Names and texts for --dataset.
  std::vector<std::pair<std::string, std::string>> datasets = {{"synthetic", "drawn images"}};
  // Names and texts, for --help alone.
  std::vector<std::pair<std::string, std::string>> codecs, codec_keys;
  std::vector<std::string> topologies = {"ring"};  // for --topology
  // Reads a --compress value, or throws Error(usage). Null: every value is accepted, as text.
  CompressChoice (*parse_compress)(std::string_view text) = nullptr;
  // The topology for a codec and a number of ranks, if none is given; empty: the default.
  std::string_view (*topology_for)(const CodecSpec& codec, std::size_t ranks) = nullptr;
  std::size_t ranks = 1;
  bool (*takes_momentum)(const CodecSpec& codec) = nullptr;  // exchange_kinds.hpp
  // Detects the data set in a folder; empty: unknown. Called if --data-dir is given without
  // --dataset.
  std::function<std::string(const std::string& folder)> detect_dataset = nullptr;
  bool reads_pipes = true;  // false: a --config that is a pipe is left for a later call
};

// `arguments` are main's without the program's name. --help and --version win over all else.
[[nodiscard]] Options parse_options(const std::vector<std::string>& arguments,
                                    const OptionContext& context);

// The same from the text of a configuration file alone; `name` is for messages. From the text of
// config_text() it makes equal options.
[[nodiscard]] Options parse_config_text(const std::string& text, const std::string& name,
                                        const OptionContext& context);

// The word after --help, which may be empty; nothing without --help.
[[nodiscard]] std::optional<std::string> help_topic(const std::vector<std::string>& arguments);

// --help, at most 80 columns wide. Without a topic: the options that most runs need; "all": all
// options; otherwise the options of one topic. Throws Error(usage) for other topics.
[[nodiscard]] std::string help_text(const OptionContext& context, const std::string& topic = "");

// --print-config: a configuration file that repeats the run.
[[nodiscard]] std::string config_text(const Options& options);

}  // namespace dp
