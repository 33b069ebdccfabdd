#include "app/options/options_checkpoint.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {
CheckpointCadence parse_checkpoint_cadence(std::string_view text) {
  constexpr WholeRange kMost{1, 1'000'000'000};
  constexpr double kLongest_s = 1e7;
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, digits), unit = text.substr(digits);
  const auto whole = [&] { return static_cast<std::size_t>(parse_whole("", number, kMost)); };
  const std::string given(text);
  try {
    if (unit == "epoch" || unit == "epochs") return {.epochs = whole(), .given = given};
    if (unit == "step" || unit == "steps") return {.steps = whole(), .given = given};
    for (const auto& [name, seconds] :
         {std::pair{"s", 1.0}, std::pair{"min", 60.0}, std::pair{"h", 3600.0}}) {
      if (unit != name) continue;
      const double value = parse_real(
          "", number, {.least = 0, .most = kLongest_s / seconds, .is_least_allowed = false});
      return {.seconds = value * seconds, .given = given};
    }
  } catch (const Error&) {
    // Reported below.
  }
  throw_error(ErrorKind::usage, "--checkpoint-every {}: must be {}", shown(text),
              kCheckpointCadences);
}

std::vector<OptionRow> checkpoint_rows(Options& options) {
  std::vector<OptionRow> rows = {
      parsed_row(
          "checkpoint-every", options.checkpoint_every, parse_checkpoint_cadence,
          "N{epoch|steps|min}", kCheckpointCadences,
          "with --checkpoint: how often, with its unit, such as 1epoch, 500steps, 30s, 10min or "
          "2h; the end of the run gets one in any case"),
      whole_row("checkpoint-keep", options.checkpoint_keep, {1, 1'000'000},
                "number of checkpoints to keep; older ones are removed"),
      flag_row("resume", options.resume,
               "continue from the newest complete checkpoint, if there is one"),
      flag_row("accept-build", options.accept_build,
               "with --resume: accept another build's checkpoint; bits may differ")};
  for (OptionRow& row : rows) {
    row.only_with = {.option = "checkpoint", .others = {"none"}, .words = "--checkpoint DIR"};
  }
  rows.back().only_with = {.option = "resume", .values = {"on"}, .words = "--resume"};
  rows.insert(rows.begin(),
              text_row("checkpoint", options.checkpoint, "DIR", "the path of a folder or none",
                       "write checkpoints into this folder of each rank's host; none: no "
                       "checkpoints"));
  return rows;
}

}  // namespace dp
