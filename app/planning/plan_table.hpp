// A table of --plan: its rows, their order, and its quickest row.
//
// Rows are ranked by predicted time and bytes alone. The accuracy that a codec costs is not
// predicted: the studies' tables (experiments/studies/exchange.md) and dpreport have measured
// losses.
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
  double sent_bytes = 0.0;                    // of the rank that sends most
  std::optional<double> bits = std::nullopt;  // per value, of auto

  // "auto (0.31 bits)"
  [[nodiscard]] std::string text() const;
};

// The shortest step first; of equally long steps the one that sends fewer bytes first.
void rank_rows(std::vector<PlanRow>& rows);

[[nodiscard]] TextTable table_of(const std::vector<PlanRow>& rows);

// Names two rows of a ranked table. The first is the quickest. The second has the same topology and
// rounds, and sends the most bytes among the rows that take at most kNearQuickest times as long: it
// drops the least of the gradient. Rows with longer rounds count only if there are no others,
// because rounds change the training; a quicker one is named with its time. If the quickest row
// still waits for the network, the text suggests what would help. Needs at least one row.
inline constexpr double kNearQuickest = 1.05;
[[nodiscard]] std::string quickest_text(const std::vector<PlanRow>& rows);

}  // namespace dp
