#include "app/options/options_rounds.hpp"

#include <string>
#include <utility>

#include "app/options/options_keyed.hpp"
#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
namespace {

std::vector<OptionRow> keys_of_rounds(Options& options) {
  return {
      real_row("outer-lr", options.outer_lr, {.least = 0, .most = 10, .is_least_allowed = false},
               "outer learning rate, for the mean change of a round; 1 without outer-momentum "
               "averages the ranks' parameters"),
      real_row("outer-momentum", options.outer_momentum,
               {.least = 0, .most = 1, .is_most_allowed = false},
               "outer Nesterov momentum, from round to round; DiLoCo: 0.9 with outer-lr=0.7"),
      whole_row("delay", options.sync_delay, {0, 999'999},
                "steps of the next round during which a round's exchange runs, before its result "
                "is applied; below H; 0: training waits for the exchange")};
}

}  // namespace

std::vector<OptionRow> round_rows(Options& options) {
  OptionRow every = parsed_row(
      "sync-every", options.sync_every, parse_round_schedule, "H|auto[:key=value,...]",
      kRoundSchedules,
      "rounds of H steps: each rank trains alone, then all exchange the changes of their "
      "parameters; off: exchange gradients at every step; auto: as off, unless training would "
      "wait for exchanges for a tenth of its time; then rounds of two steps at first, and later "
      "the shortest that hide exchanges, up to max=N (64) steps; from=E: from epoch E on");
  every.has_more_keys = true;  // parse_round_schedule() reads them
  return {keyed_row(std::move(every), keys_of_rounds, options)};
}

void resolve_rounds(Options& options, const LayerOf& layer_of, const OptionContext& context) {
  const RoundSchedule& schedule = options.sync_every;
  if (!schedule.has_rounds()) {
    for (const OptionRow& key : keys_of_rounds(options)) {
      if (layer_of("sync-every " + key.name) == Layer::preset) continue;
      throw_error(ErrorKind::usage, "--sync-every off: without rounds there is no {}=", key.name);
    }
    return;
  }
  const auto refuse = [&](const char* value, const char* why) {
    throw_error(ErrorKind::usage, "--sync-every {}: not with {}, {}", schedule.given, value, why);
  };
  if (!options.exchange) refuse("--exchange off", "which exchanges nothing at all");
  if (options.sync_bn) {
    refuse("--sync-bn on", "which needs the images of all ranks at every step");
  }
  if (options.compress.codec.name == "dgc") {
    refuse("--compress dgc",
           "which keeps the momentum of gradients that are exchanged at every step; topk keeps no "
           "momentum");
  }
  if (context.takes_momentum && context.takes_momentum(options.compress.codec)) {
    refuse(("--compress " + options.compress.text).c_str(),
           "whose velocities need an exchange at every step; allowed: velocity=off");
  }
  if (schedule.is_auto()) {
    if (options.sync_delay > 0) {
      throw_error(ErrorKind::usage, "--sync-every {}: delay={}: not with auto; give H",
                  schedule.given, options.sync_delay);
    }
    return;
  }
  if (checked_cast<std::size_t>(options.sync_delay) >= schedule.steps) {
    throw_error(ErrorKind::usage,
                "--sync-every {}: delay={}: must be below the {} step{} of a round", schedule.given,
                options.sync_delay, schedule.steps, schedule.steps == 1 ? "" : "s");
  }
  if (options.epochs > 0 && schedule.from > static_cast<std::size_t>(options.epochs)) {
    throw_error(ErrorKind::usage, "--sync-every {}: from= must be at most the run's --epochs {}",
                schedule.given, options.epochs);
  }
}

}  // namespace dp
