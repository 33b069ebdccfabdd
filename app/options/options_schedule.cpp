#include "app/options/options_schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "app/options/options_keyed.hpp"
#include "app/options/options_values.hpp"
#include "app/options/recipes.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

using Schedule = Options::LrSchedule;

const std::vector<std::string> kNames = {"constant", "step",       "cosine",
                                         "onecycle", "triangular", "poly"};

const std::string& name_of(Schedule schedule) { return kNames[static_cast<std::size_t>(schedule)]; }

// A recipe's warm-up is meant for the recipe's number of epochs. A shorter run warms up for the
// same fraction of its epochs.
void shorten_warmup(Options& options, const LayerOf& layer_of) {
  const Recipe* recipe = find_recipe(options.recipe);
  if (recipe == nullptr || layer_of("warmup-epochs") != Layer::recipe) return;
  const std::string epochs = recipe->value_of("epochs");
  const double own = epochs.empty() ? 0.0 : std::stod(epochs);
  const auto given = static_cast<double>(options.epochs);
  if (given < own) options.warmup_epochs *= given / own;
}

OptionRow milestones_row(Options& options) {
  constexpr RealRange kEpoch{.least = 0, .most = 100000, .is_least_allowed = false};
  return {.name = "milestones",
          .placeholder = "X/X/...",
          .help = "epochs after which the rate is multiplied by gamma",
          .allowed = "increasing numbers joined by /, each " + kEpoch.text(),
          .shown_default = "a half and three quarters of the run",
          .set =
              [kEpoch, &options](std::string_view value) {
                options.lr_milestones.clear();
                if (value.empty()) return;
                std::string list(value);
                if (list.find(',') != std::string::npos) throw_error(ErrorKind::usage, "a comma");
                std::ranges::replace(list, '/', ',');
                options.lr_milestones = parse_increasing("", list, kEpoch);
              },
          .get = [&options] { return fmt::format("{}", fmt::join(options.lr_milestones, "/")); }};
}

std::vector<OptionRow> keys_of_schedules(Options& options) {
  constexpr RealRange kShare = {.least = 0, .most = 1};
  const std::vector<std::string> step = {"step"}, triangular = {"triangular"}, poly = {"poly"};
  return {key_of(step, milestones_row(options)),
          key_of(step, real_row("gamma", options.lr_gamma,
                                {.least = 0, .most = 1, .is_least_allowed = false},
                                "factor of the rate at each milestone")),
          key_of(triangular, real_row("start", options.lr_start, kShare,
                                      "rate at the start, as a fraction of --lr")),
          key_of(triangular, real_row("peak", options.lr_peak_at, kShare,
                                      "when the rate reaches --lr, as a fraction of the run")),
          key_of(triangular,
                 real_row("end", options.lr_end, kShare, "rate at the end, as a fraction of --lr")),
          key_of(poly, real_row("power", options.lr_power, {.least = 0, .most = 100},
                                "the rate falls as (1 - t)^X while t goes from 0 to 1")),
          key_of({}, choice_row("by", options.lr_interval, {"step", "epoch"},
                                "change the rate at every step, or only between epochs (the "
                                "warm-up is always by step)"))};
}

}  // namespace

OptionRow batch_schedule_row(Options& options) {
  return parsed_row(
      "batch-schedule", options.batch_schedule, parse_batch_schedule, "fixed|dynamic:max=N|E:N,...",
      kBatchSchedules,
      "how the global batch changes; dynamic: it grows up to N images as the training loss falls, "
      "by 2^(floor(E0 / E) - 1) with the losses E0 of the first epoch and E of the latest; E:N: N "
      "images from epoch E on; --lr-scaling adapts the learning rate");
}

std::vector<OptionRow> schedule_rows(Options& options) {
  return {keyed_row(choice_row("lr-schedule", options.lr_schedule, kNames,
                               "how the learning rate changes during the run", "onecycle"),
                    keys_of_schedules, options),
          real_row("warmup-epochs", options.warmup_epochs, {.least = 0, .most = 100000},
                   "epochs in which the learning rate rises at the start (not with onecycle and "
                   "triangular)"),
          choice_row("lr-scaling", options.lr_scaling, {"none", "linear", "sqrt"},
                     "multiply --lr by F = ranks x --accumulate x the batch's growth (linear), or "
                     "by the square root of F (sqrt)")};
}

void resolve_schedule(Options& options, const LayerOf& layer_of) {
  const bool is_step = options.lr_schedule == Options::LrSchedule::step;
  const Layer schedule = layer_of("lr-schedule");
  const std::string name = name_of(options.lr_schedule);
  if (is_step && options.lr_milestones.empty()) {
    // At a half and three quarters of the run, as in He et al. 2016 (32,000 and 48,000 of 64,000
    // steps).
    const auto epochs = static_cast<double>(options.epochs);
    options.lr_milestones = {0.5 * epochs, 0.75 * epochs};
  }
  const bool rises_by_itself = options.lr_schedule == Options::LrSchedule::onecycle ||
                               options.lr_schedule == Options::LrSchedule::triangular;
  if (options.warmup_epochs > 0 && rises_by_itself) {
    if (layer_of("warmup-epochs") >= schedule) {
      throw_error(ErrorKind::usage,
                  "--warmup-epochs {}: not with --lr-schedule {}, which has its own warm-up; "
                  "choose constant, step, cosine or poly",
                  options.warmup_epochs, name);
    }
    options.warmup_epochs = 0;
  }
  shorten_warmup(options, layer_of);
  if (options.warmup_epochs > static_cast<double>(options.epochs)) {
    throw_error(ErrorKind::usage, "--warmup-epochs {}: must be at most the run's --epochs {}",
                options.warmup_epochs, options.epochs);
  }
  if (options.compress_warmup > 0 && options.compress_warmup >= options.epochs) {
    throw_error(
        ErrorKind::usage,
        "--compress-warmup {}: must be below the run's --epochs {}; otherwise nothing is ever "
        "sent as {}",
        options.compress_warmup, options.epochs, options.compress.text);
  }
}

std::vector<std::string> batch_warnings(const Options& options, std::int64_t ranks) {
  const BatchSchedule& schedule = options.batch_schedule;
  if (schedule.kind == BatchSchedule::Kind::fixed || options.epochs == 0) return {};
  const std::string end =
      fmt::format("the run ends after {} epoch{}", options.epochs, options.epochs == 1 ? "" : "s");
  std::string why;
  if (schedule.kind == BatchSchedule::Kind::list) {
    std::vector<std::string> late;
    for (const auto& [epoch, batch] : schedule.list) {
      if (std::cmp_greater(epoch, options.epochs))
        late.push_back(fmt::format("{}:{}", epoch, batch));
    }
    if (!late.empty()) why = fmt::format("{}, so {} has no effect", end, fmt::join(late, ","));
  } else if (options.epochs == 1) {
    why = end + ", so the batch never grows";
  } else if (const auto batch = options.global_batch_of(ranks);
             std::cmp_less_equal(schedule.most, batch)) {
    why = fmt::format("a step has {} images from the start, so the batch never grows", batch);
  }
  if (why.empty()) return {};
  return {fmt::format("--batch-schedule {}: {}", schedule.given, why)};
}

}  // namespace dp
