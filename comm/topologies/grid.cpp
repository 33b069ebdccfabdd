#include "comm/topologies/grid.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "kernels/codecs/codec.hpp"

namespace dp {
namespace {

// The places of all ranks, and the owners of one bucket's chunks.
struct Grid {
  Grid(std::size_t all_ranks, std::size_t bucket_turn) : ranks(all_ranks), turn(bucket_turn) {
    while (columns * columns < ranks) ++columns;
  }

  [[nodiscard]] std::size_t row_of(std::size_t rank) const { return rank / columns; }
  [[nodiscard]] std::size_t column_of(std::size_t rank) const { return rank % columns; }
  [[nodiscard]] std::size_t rows() const { return (ranks + columns - 1) / columns; }
  [[nodiscard]] std::size_t whole_rows() const { return ranks / columns; }
  [[nodiscard]] bool has(std::size_t row, std::size_t column) const {
    return row * columns + column < ranks;
  }
  [[nodiscard]] std::size_t rank_at(std::size_t row, std::size_t column) const {
    return row * columns + column;
  }
  [[nodiscard]] std::size_t owner_of(std::size_t chunk) const {
    return rank_at((chunk + turn) % whole_rows(), chunk);
  }
  // The rank that collects the chunk for `row`: the ranks of `row` send it their own values of the
  // chunk and get the total back.
  [[nodiscard]] std::size_t collector_of(std::size_t row, std::size_t chunk) const {
    return has(row, chunk) ? rank_at(row, chunk) : owner_of(chunk);
  }
  // The ranks that send their own values of `rank`'s chunk to `rank`, in the order in which `rank`
  // takes these values. By shifts, these are the other ranks of `rank`'s row. If the last row has
  // no rank in this column and `rank` owns the chunk, the ranks of the last row send to `rank`,
  // too. For each shift, the rank of `rank`'s own row comes before the rank of the last row.
  [[nodiscard]] std::vector<int> members_of(std::size_t rank) const {
    std::vector<int> members;
    const std::size_t row = row_of(rank), column = column_of(rank);
    for (std::size_t shift = 1; shift < columns; ++shift) {
      const std::size_t other = (column + columns - shift) % columns;
      if (has(row, other)) members.push_back(static_cast<int>(rank_at(row, other)));
      const std::size_t last = rows() - 1;
      const bool takes_strays = last != row && !has(last, column) && owner_of(column) == rank;
      if (takes_strays && has(last, other)) {
        members.push_back(static_cast<int>(rank_at(last, other)));
      }
    }
    return members;
  }
  // The other collectors of `rank`'s chunk, beginning with the row below.
  [[nodiscard]] std::vector<int> column_below(std::size_t rank) const {
    std::vector<int> others;
    const std::size_t row = row_of(rank), column = column_of(rank);
    for (std::size_t shift = 1; shift < rows(); ++shift) {
      const std::size_t other = (row + shift) % rows();
      if (has(other, column)) others.push_back(static_cast<int>(rank_at(other, column)));
    }
    return others;
  }

  std::size_t ranks, turn, columns = 1;
};

// The bucket, cut into one chunk for each column.
ExchangeShape cut_of(const ExchangeShape& shape) {
  return {
      .elements = shape.elements, .ranks = Grid(shape.ranks, 0).columns, .segment = shape.segment};
}

}  // namespace

ExchangePlan grid_plan(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                       std::size_t window) {
  using Take = PlanTask::Take;
  using Give = PlanTask::Give;
  ExchangePlan plan(cut_of(shape));
  plan.notices = ExchangePlan::Notices::to_partners;
  if (shape.ranks < 2) return plan;
  const Grid grid(shape.ranks, shape.turn);
  const std::size_t row = grid.row_of(rank), own = grid.column_of(rank);
  const std::size_t owner = grid.owner_of(own);
  const bool owns = owner == rank;
  const std::vector<int> members = grid.members_of(rank);
  const std::vector<int> column = owns ? grid.column_below(rank) : std::vector<int>();
  const std::vector<int> to_owner = {static_cast<int>(owner)};
  std::vector<int> behind_owner = column;  // the receivers of an owner's total
  behind_owner.insert(behind_owner.end(), members.begin(), members.end());
  const std::size_t segments = plan.shape.segments();
  for (std::size_t group = 0; group < segments; group += window) {
    const std::size_t end = std::min(group + window, segments);
    // Rows.
    for (std::size_t shift = 1; shift < grid.columns; ++shift) {
      const std::size_t chunk = (own + shift) % grid.columns;
      const auto to = static_cast<int>(grid.collector_of(row, chunk));
      for (std::size_t at = group; at < end; ++at) {
        plan.add(chunk, at, {.give = Give::partial}, {to});
      }
    }
    for (std::size_t m = 0; m < members.size(); ++m) {
      const bool is_last = m + 1 == members.size();
      const bool completes = is_last && owns && column.empty();
      const Give give = completes ? Give::total : is_last && !owns ? Give::partial : Give::nothing;
      for (std::size_t at = group; at < end; ++at) {
        plan.add(own, at,
                 {.from = members[m],
                  .take = Take::partial,
                  .give = give,
                  .holds_only_own_values = m == 0},
                 completes          ? std::span<const int>(behind_owner)
                 : is_last && !owns ? std::span<const int>(to_owner)
                                    : std::span<const int>());
      }
    }
    // Columns.
    if (!owns && members.empty()) {
      for (std::size_t at = group; at < end; ++at) {
        plan.add(own, at, {.give = Give::partial}, to_owner);
      }
    }
    for (std::size_t c = 0; c < column.size(); ++c) {
      const bool completes = c + 1 == column.size();
      for (std::size_t at = group; at < end; ++at) {
        plan.add(own, at,
                 {.from = column[c],
                  .take = Take::partial,
                  .give = completes ? Give::total : Give::nothing,
                  .holds_only_own_values = members.empty() && c == 0},
                 completes ? std::span<const int>(behind_owner) : std::span<const int>());
      }
    }
    // Back.
    for (std::size_t at = group; at < end; ++at) {
      if (!owns) {
        plan.add(own, at,
                 {.from = static_cast<int>(owner),
                  .take = Take::total,
                  .give = members.empty() ? Give::nothing : Give::message},
                 members);
      }
      for (std::size_t shift = 1; shift < grid.columns; ++shift) {
        const std::size_t chunk = (own + grid.columns - shift) % grid.columns;
        const auto from = static_cast<int>(grid.collector_of(row, chunk));
        plan.add(chunk, at, {.from = from, .take = Take::total});
      }
    }
  }
  return plan;
}

std::uint64_t grid_wire_bytes(const ExchangeShape& shape, std::span<const int> hosts,
                              std::size_t rank, const Codec& codec) {
  if (shape.ranks < 2 || shape.elements == 0) return 0;
  const Grid grid(shape.ranks, shape.turn);
  const ExchangeShape cut = cut_of(shape);
  const std::size_t own = grid.column_of(rank);
  const std::uint64_t of_own = chunk_wire_bytes(cut, own, codec);
  std::uint64_t bytes = grid.members_of(rank).size() * of_own;
  for (std::size_t chunk = 0; chunk < grid.columns; ++chunk) {
    if (chunk != own) bytes += chunk_wire_bytes(cut, chunk, codec);
  }
  bytes += grid.owner_of(own) == rank ? grid.column_below(rank).size() * of_own : of_own;
  const std::size_t partners = grid_plan(shape, hosts, rank, 1).partners().size();
  return bytes + kMessageFrameBytes * partners;
}

std::size_t grid_hops(std::size_t ranks, std::span<const int>) {
  if (ranks < 2) return 0;
  const Grid grid(ranks, 0);
  const std::size_t of_last_row = ranks - (grid.rows() - 1) * grid.columns;
  const bool has_two_levels = grid.whole_rows() > 1 || (grid.rows() > 1 && of_last_row > 1);
  return has_two_levels ? 4 : 2;
}

double grid_wire_factor(std::size_t ranks, std::span<const int>, std::size_t rank) {
  if (ranks < 2) return 0.0;
  const Grid first(ranks, 0);
  const auto columns = static_cast<double>(first.columns);
  double chunks = 0.0;
  for (std::size_t turn = 0; turn < first.whole_rows(); ++turn) {
    const Grid grid(ranks, turn);
    const std::size_t back =
        grid.owner_of(grid.column_of(rank)) == rank ? grid.column_below(rank).size() : 1;
    chunks += columns - 1.0 + static_cast<double>(grid.members_of(rank).size() + back);
  }
  return chunks / columns / static_cast<double>(first.whole_rows());
}

}  // namespace dp
