#include "app/options/round_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>

#include "app/options/options_values.hpp"
#include "kernels/base/error.hpp"

namespace dp {

namespace {

constexpr WholeRange kSteps{1, 1'000'000}, kEpoch{1, 100'000};
constexpr WholeRange kMostSteps{2, 1'000'000};
constexpr std::size_t kUsualMost = 64;
constexpr std::array kRemovedKeys = {"alpha", "decay", "state"};

// Refuses keys of earlier versions.
void refuse_removed_keys(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return;
  for (const std::string& pair : split_at_commas(text.substr(colon + 1))) {
    const std::string key = pair.substr(0, pair.find('='));
    if (std::ranges::find(kRemovedKeys, key) == kRemovedKeys.end()) continue;
    throw_error(ErrorKind::usage,
                "--sync-every {}: the key {}= was removed, because no study has shown a gain from "
                "it; must be {}",
                shown(text), key, kRoundSchedules);
  }
}

RoundSchedule parse(std::string_view text) {
  if (text == "off") return {};
  RoundSchedule schedule = {.given = std::string(text)};
  const std::size_t colon = std::min(text.find(':'), text.size());
  const bool is_auto = text.substr(0, colon) == "auto";
  if (is_auto) {
    schedule.most_steps = kUsualMost;
    schedule.from = RoundSchedule::kNotChosen;
  } else {
    schedule.steps = checked_cast<std::size_t>(parse_whole("", text.substr(0, colon), kSteps));
  }
  if (colon == text.size()) return schedule;
  std::set<std::string> seen;
  for (const std::string& pair : split_at_commas(text.substr(colon + 1))) {
    const std::size_t at = std::min(pair.find('='), pair.size());
    const std::string key = pair.substr(0, at), value = pair.substr(std::min(at + 1, pair.size()));
    if (is_auto && key == "max") {
      schedule.most_steps = checked_cast<std::size_t>(parse_whole("", value, kMostSteps));
    } else if (is_auto && key == "from") {
      throw_error(ErrorKind::usage, "not with auto");
    } else if (key == "from") {
      schedule.from = checked_cast<std::size_t>(parse_whole("", value, kEpoch));
    } else {
      throw_error(ErrorKind::usage, "unknown");
    }
    if (!seen.insert(key).second) throw_error(ErrorKind::usage, "given twice");
  }
  return schedule;
}

}  // namespace

RoundSchedule parse_round_schedule(std::string_view text) {
  refuse_removed_keys(text);
  try {
    return parse(text);
  } catch (const Error&) {
    throw_error(ErrorKind::usage, "--sync-every {}: must be {}", shown(text), kRoundSchedules);
  }
}

std::size_t chosen_steps(const EpochOfRounds& epoch, std::size_t most) {
  if (!(epoch.compute_s > 0.0)) return 1;
  const bool is_in_rounds = epoch.steps > 1;
  if (!is_in_rounds && epoch.exposed_s <= kShareOfWaiting * epoch.compute_s) return 1;
  const double exchange_s =
      is_in_rounds ? epoch.exposed_s + static_cast<double>(epoch.steps - 1) * epoch.compute_s
                   : std::max(epoch.exposed_s, epoch.in_flight_s);
  const double in_steps = exchange_s / epoch.compute_s;
  double steps = std::ceil((in_steps + 1.0) / (1.0 + kShareOfWaiting) - 1e-9);
  const auto now = static_cast<double>(epoch.steps);
  if (is_in_rounds && epoch.exposed_s <= kShareForLonger * now * epoch.compute_s) {
    steps = std::min(steps, now);
  }
  return std::clamp<std::size_t>(
      steps < static_cast<double>(most) ? static_cast<std::size_t>(steps) : most, 1, most);
}

std::string RoundSchedule::text() const {
  if (is_auto() && from == kNotChosen) {
    return fmt::format(
        "every step, but less often (at least every {} steps) if training would wait for the "
        "exchange",
        most_steps);
  }
  const std::string every = fmt::format("every {} step{}", steps, steps == 1 ? "" : "s");
  return from > 1 ? fmt::format("{} from epoch {} on", every, from) : every;
}

}  // namespace dp
