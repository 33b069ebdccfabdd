// What a plan says to take.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "app/planning/codec_accuracy.hpp"
#include "app/planning/plan.hpp"
#include "io/files/text_table.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {
namespace {

std::string sync_text(const PlanRow& row) {
  return row.sync_every > 1 ? fmt::format(" --sync-every {}", row.sync_every) : std::string();
}

}  // namespace

std::string PlanRow::text() const {
  return sent_as.empty() ? codec : fmt::format("{} ({:.3g} bits)", codec, bits);
}

std::optional<double> loss_of_studies(const PlanRow& row) {
  const bool is_auto = !row.sent_as.empty();
  return loss_of_studies(parse_codec_spec(is_auto ? row.sent_as : row.codec), row.topology,
                         is_auto);
}

PlanAdvice advise(const std::vector<PlanRow>& rows) {
  const std::size_t shortest = std::ranges::min_element(rows, {}, &PlanRow::sync_every)->sync_every;
  const auto trains_well = [shortest](const PlanRow& row) {
    if (row.sync_every > shortest) return false;
    const auto loss = loss_of_studies(row);
    return loss && *loss <= 1.0 + kSpreadOfSeeds;
  };
  const bool has_good = std::ranges::any_of(rows, trains_well);
  double least_s = std::numeric_limits<double>::infinity();
  for (const PlanRow& row : rows) {
    if (!has_good || trains_well(row)) least_s = std::min(least_s, row.step_s);
  }
  PlanAdvice advice;
  while ((has_good && !trains_well(rows[advice.row])) ||
         rows[advice.row].step_s > kNearFastest * least_s) {
    ++advice.row;
  }
  const PlanRow& best = rows[advice.row];
  advice.text = fmt::format(
      "--topology {} --compress {}{}: {} a step, of which it waits {} for the "
      "network",
      best.topology, best.codec, sync_text(best), format_seconds(best.step_s),
      format_seconds(best.exposed_s));
  advice.text += has_good ? fmt::format(
                                "; the first of those listed that train as fp32 does within the "
                                "spread of seeds and take at most {:.0f} % longer than the "
                                "quickest of these",
                                100.0 * (kNearFastest - 1.0))
                          : std::string("; no study has tried any of these codecs");
  if (best.exposed_s <= 0.1 * best.step_s) return advice;
  const PlanRow& quickest = *std::ranges::min_element(rows, {}, &PlanRow::step_s);
  if (quickest.step_s < 0.95 * best.step_s) {
    const auto loss = quickest.sync_every > shortest ? std::nullopt : loss_of_studies(quickest);
    advice.text += fmt::format(". {}{} would take {}", quickest.codec, sync_text(quickest),
                               format_seconds(quickest.step_s));
    if (loss) advice.text += fmt::format(", with {:+.0f} % loss in the study", 100 * (*loss - 1));
  }
  advice.text += shortest > 1 ? ". A larger batch or --accumulate waits less often"
                              : ". A larger batch, --accumulate or --sync-every waits less often";
  return advice;
}

}  // namespace dp
