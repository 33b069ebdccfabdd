#include "app/planning/plan_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace dp {
namespace {

// The row as options of dptrain.
std::string options_of(const PlanRow& row) {
  std::string text = fmt::format("--topology {} --compress {}", row.topology, row.codec);
  if (row.sync_every > 1) text += fmt::format(" --sync-every {}", row.sync_every);
  return text;
}

}  // namespace

std::string PlanRow::text() const {
  return bits ? fmt::format("{} ({:.3g} bits)", codec, *bits) : codec;
}

void rank_rows(std::vector<PlanRow>& rows) {
  std::ranges::stable_sort(
      rows, {}, [](const PlanRow& row) { return std::tuple(row.step_s, row.sent_bytes); });
}

TextTable table_of(const std::vector<PlanRow>& rows) {
  TextTable table;
  table.header = {"--topology", "--compress", "step", "computes", "waits", "a rank sends"};
  table.align = {Align::left, Align::left, Align::right, Align::right, Align::right, Align::right};
  const bool has_rounds =
      std::ranges::any_of(rows, [](const PlanRow& row) { return row.sync_every > 1; });
  if (has_rounds) {
    table.header.emplace(table.header.begin(), "--sync-every");
    table.align.emplace(table.align.begin(), Align::right);
  }
  const auto sync_text = [](const PlanRow& row) {
    if (row.sync_every == 1) return std::string("off");
    return std::to_string(row.sync_every) + (row.is_chosen ? " (auto)" : "");
  };
  for (const PlanRow& row : rows) {
    table.rows.push_back({row.topology, row.text(), format_seconds(row.step_s),
                          format_seconds(row.compute_s), format_seconds(row.exposed_s),
                          format_bytes(row.sent_bytes)});
    if (!has_rounds) continue;
    table.rows.back().insert(table.rows.back().begin(), sync_text(row));
  }
  return table;
}

std::string quickest_text(const std::vector<PlanRow>& rows) {
  const std::size_t shortest = std::ranges::min_element(rows, {}, &PlanRow::sync_every)->sync_every;
  const PlanRow& quickest = *std::ranges::find(rows, shortest, &PlanRow::sync_every);
  std::string text =
      fmt::format("{}: {} per step, including {} waiting for the network", options_of(quickest),
                  format_seconds(quickest.step_s), format_seconds(quickest.exposed_s));
  const PlanRow* fullest = &quickest;
  for (const PlanRow& row : rows) {
    if (row.sync_every == shortest && row.topology == quickest.topology &&
        row.step_s <= kNearQuickest * quickest.step_s && row.sent_bytes > fullest->sent_bytes) {
      fullest = &row;
    }
  }
  if (fullest != &quickest) {
    text += fmt::format("; within {:.0f} % of that, {} sends the most ({}, {} per step)",
                        100.0 * (kNearQuickest - 1.0), fullest->codec,
                        format_bytes(fullest->sent_bytes), format_seconds(fullest->step_s));
  }
  if (quickest.exposed_s <= 0.1 * quickest.step_s) return text;
  if (rows.front().step_s < 0.95 * quickest.step_s) {
    text += fmt::format(". {} would take {}", options_of(rows.front()),
                        format_seconds(rows.front().step_s));
  }
  text += shortest > 1
              ? ". With a larger batch or --accumulate, training waits less often"
              : ". With a larger batch, --accumulate or --sync-every, training waits less often";
  return text;
}

}  // namespace dp
