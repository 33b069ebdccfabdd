#include "app/options_schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>

#include "app/batch_schedule.hpp"
#include "app/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

OptionRow milestones_row(Options& options) {
  constexpr RealRange kEpoch{.least = 0, .most = 100000, .is_least_allowed = false};
  return {.name = "lr-milestones",
          .placeholder = "X,X,...",
          .help =
              "with --lr-schedule step: epochs after which the learning rate is "
              "multiplied by --lr-gamma; without this option, after a half and three "
              "quarters of the run",
          .allowed = "increasing numbers joined by commas, each " + kEpoch.text(),
          .set =
              [=, &options](std::string_view value) {
                options.lr_milestones = parse_increasing("--lr-milestones", value, kEpoch);
              },
          .get = [&options] { return fmt::format("{}", fmt::join(options.lr_milestones, ",")); }};
}

// Three numbers, as "0.2,0.23,0.07".
OptionRow triangle_row(Options& options) {
  const std::string allowed =
      "START,PEAK,END: the shares of --lr at the start and at the end, from 0 to 1, and between "
      "them the share of the run at which the peak is, from 0 to 1";
  return {.name = "lr-triangle",
          .placeholder = "X,X,X",
          .help = "with --lr-schedule triangular: " + allowed,
          .allowed = allowed,
          .set =
              [=, &options](std::string_view value) {
                const std::vector<std::string> parts = split_at_commas(value);
                try {
                  if (parts.size() != 3) throw_error(ErrorKind::usage, "not three");
                  std::vector<double> numbers;
                  for (const std::string& part : parts) {
                    numbers.push_back(parse_real("", part, {.least = 0, .most = 1}));
                  }
                  options.lr_start = numbers[0];
                  options.lr_peak_at = numbers[1];
                  options.lr_end = numbers[2];
                } catch (const Error&) {
                  throw_error(ErrorKind::usage, "--lr-triangle {}: must be {}", shown(value),
                              allowed);
                }
              },
          .get =
              [&options] {
                return fmt::format("{},{},{}", real_text(options.lr_start),
                                   real_text(options.lr_peak_at), real_text(options.lr_end));
              }};
}

}  // namespace

OptionRow batch_schedule_row(Options& options) {
  OptionRow row = text_row(
      "batch-schedule", options.batch_schedule, "fixed|dynamic:max=N|E:N,...", kBatchSchedules,
      "how the number of images per step of all ranks changes; dynamic: it grows up to N as the "
      "training loss falls, by the factor 2^(floor(E0 / E) - 1), with E0 the first epoch's loss "
      "and E the last one's; E:N: from epoch E on N images; --lr-scaling says how the learning "
      "rate follows; a batch that does not fit into memory is computed in parts");
  row.set = [&options](std::string_view value) {
    static_cast<void>(parse_batch_schedule("--batch-schedule", value));
    options.batch_schedule = std::string(value);
  };
  return row;
}

std::vector<OptionRow> schedule_rows(Options& options) {
  return {
      choice_row("lr-schedule", options.lr_schedule,
                 {"constant", "step", "cosine", "onecycle", "triangular", "poly"},
                 "how the learning rate changes during the run", "onecycle"),
      choice_row("lr-interval", options.lr_interval, {"step", "epoch"},
                 "when it changes: at every step, or between epochs alone (the rise of "
                 "--warmup-epochs is by step)"),
      milestones_row(options),
      real_row("lr-gamma", options.lr_gamma, {.least = 0, .most = 1, .is_least_allowed = false},
               "with --lr-schedule step: factor by which the learning rate changes at "
               "each milestone"),
      triangle_row(options),
      real_row("lr-power", options.lr_power, {.least = 0, .most = 100},
               "with --lr-schedule poly: the rate falls as (1 - t)^X, t from 0 to 1"),
      real_row("warmup-epochs", options.warmup_epochs, {.least = 0, .most = 100000},
               "number of epochs at the start in which the learning rate rises; not "
               "for --lr-schedule onecycle and triangular, which begin with a rise of their own"),
      choice_row(
          "lr-scaling", options.lr_scaling, {"none", "linear", "sqrt"},
          "multiply --lr by the number of ranks times --accumulate (linear), or by its square "
          "root (sqrt); with --batch-schedule also by the batch's growth, or by its root")};
}

}  // namespace dp
