// A table of --plan: its rows, their order, and the sentence about the quickest row.
//
// Rows are ranked by predicted time and bytes alone. How much accuracy a codec costs is not
// predicted: for measured losses see the studies' tables (experiments/studies/exchange.md) and
// dpreport.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "io/files/text_table.hpp"

namespace dp {

struct PlanRow {
  std::string topology, codec;
  std::size_t sync_every = 1;  // steps between two exchanges
  bool is_chosen = false;      // sync_every is what --sync-every auto would choose
  double step_s = 0.0, exposed_s = 0.0, compute_s = 0.0;
  double sent_bytes = 0.0;                    // by the rank that sends most
  std::optional<double> bits = std::nullopt;  // per value, with "auto"

  // "auto (0.31 bits)"
  [[nodiscard]] std::string text() const;
};

// Sorts rows by the time of a step. Of rows with equal times, the one that sends fewer bytes comes
// first.
void rank_rows(std::vector<PlanRow>& rows);

[[nodiscard]] TextTable table_of(const std::vector<PlanRow>& rows);

// Names two rows of a ranked table, which needs at least one row.
//
// The first row is the quickest among the rows with the shortest rounds. Rows with longer rounds
// are not considered, because rounds change the training. The second row drops less of the
// gradient: it has the same topology and rounds, and takes at most kNearQuickest times as long.
// Among such rows it is the one that sends the most bytes.
//
// If the quickest row still waits for the network, the text suggests what would help, and names a
// clearly quicker row with longer rounds.
inline constexpr double kNearQuickest = 1.05;
[[nodiscard]] std::string quickest_text(const std::vector<PlanRow>& rows);

}  // namespace dp
