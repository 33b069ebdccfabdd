// Grid: direct in two levels, for many ranks.
//
// Ranks stand in rows of B, the root of P rounded up: rank r in row r / B and column r mod B; the
// last row may be shorter. A bucket is cut into B chunks, one for each column. In each row, the
// rank of column c adds up chunk c: it is the row's *collector* of c. One of a column's collectors
// owns the chunk: the one in row (c + turn) mod the number of whole rows, with `turn` the bucket's
// number.
//
//     row        rank r encodes its own values of chunk c and sends them to its row's collector of
//                c, for all columns but its own. If the last row has no such column, its ranks send
//                to the owner
//     column     a collector encodes its row's sum and sends it to the owner
//     back       the owner encodes the complete sum once, replaces its own copy by the decoded
//                payload, and sends it to the collectors, its own row, and the ranks of the last
//                row if that has no such column; collectors forward it to their rows unchanged
//
//     P = 4, chunk 0:    1 --> 0 (owner),  3 --> 2 --> 0,  then  0 --> 2 --> 3,  0 --> 1
//
// A value is encoded three times for any number of ranks, and each rank encodes each chunk once:
// one residual of the bucket's size is enough. Direct encodes twice, and has 2 (P - 1) messages per
// segment and rank instead of about 3 root(P).
//
// A rank sends start notices only to its partners (ExchangePlan::partners). A total depends on all
// ranks, so no other rank can be a step ahead or behind.
//
// Order: segments are taken in groups of `window`. A group consists of the rows' partial sums by
// shifts within the row (grid.cpp), the columns' by shifts within the column, then the totals
// segment by segment: first the owner's, then the row's. If all messages are put in this order,
// every rank's sends and receives are in the order of its list, so there is no deadlock
// (exchange_plan.hpp).
//
// Cost: 4 hops. With W(c) as in direct.hpp, a rank sends W(c) for all chunks but its own. A
// collector also sends its own chunk once to the owner, and the chunk's total to its row; an owner
// sends the total to all its receivers. In all, a rank sends about 2 to 3 times the encoded bucket.
#pragma once

#include <span>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"

namespace dp {

// The bytes that `rank` sends for one exchange with a codec of fixed payload size, start notices
// included.
[[nodiscard]] std::uint64_t grid_wire_bytes(const ExchangeShape& shape, std::span<const int> hosts,
                                            std::size_t rank, const Codec& codec);

// The longest chain of messages: 4; 2 if only one row has more than one rank.
[[nodiscard]] std::size_t grid_hops(std::size_t ranks, std::span<const int> hosts);

// See Topology::wire_factor: the factor of the rank that owns most often, averaged over buckets.
[[nodiscard]] double grid_wire_factor(std::size_t ranks, std::span<const int> hosts,
                                      std::size_t rank);

[[nodiscard]] ExchangePlan grid_plan(const ExchangeShape& shape, std::span<const int> hosts,
                                     std::size_t rank, std::size_t window);

}  // namespace dp
