// Grid: the topology "direct" in two levels, for many ranks.
//
// The ranks stand in rows of B, where B is the square root of P, rounded up. Rank r stands in row
// r/B and column r mod B, and the last row may be shorter. A bucket is cut into B chunks, one for
// each column. In each row, the rank of column c adds up chunk c: it is the row's *collector* of c.
// One of the collectors of c owns the chunk: the one in row (c + turn) mod the number of whole
// rows, where `turn` is the bucket's number.
//
//     row        for each column c but its own, rank r encodes its own values of chunk c and sends
//                them to its row's collector of c. If the last row has no column c, its ranks send
//                them to the owner
//     column     a collector encodes its row's sum and sends it to the owner
//     back       the owner encodes the complete sum once, replaces its own copy by the decoded
//                payload, and sends this payload to the other collectors, to its own row, and, if
//                the last row has no column c, to the ranks of the last row. Collectors forward
//                the payload to their rows unchanged
//
//     P = 4, chunk 0:    1 --> 0 (owner),  3 --> 2 --> 0,  then  0 --> 2 --> 3,  0 --> 1
//
// A value is encoded three times for any number of ranks, and each rank encodes each chunk once, so
// one residual of the bucket's size is enough. "Direct" encodes a value only twice, but a rank
// sends 2 (P - 1) messages per segment instead of about 3 root(P).
//
// A rank sends start notices only to its partners (ExchangePlan::partners). That is enough, because
// a total depends on all ranks: no rank can be a step ahead or behind.
//
// Order: segments are taken in groups of `window`. A group begins with the rows' partial sums, by
// shifts within the row (grid.cpp). Then come the columns' partial sums, by shifts within the
// column, and at last the totals, segment by segment: first those from owners, then those within
// rows. All ranks' lists follow this common order, so there is no deadlock (exchange_plan.hpp).
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

// The longest chain of messages: 4, or 2 if only one row has more than one rank.
[[nodiscard]] std::size_t grid_hops(std::size_t ranks, std::span<const int> hosts);

// See Topology::wire_factor. The owners of chunks differ from bucket to bucket, so the result is
// the mean over buckets.
[[nodiscard]] double grid_wire_factor(std::size_t ranks, std::span<const int> hosts,
                                      std::size_t rank);

[[nodiscard]] ExchangePlan grid_plan(const ExchangeShape& shape, std::span<const int> hosts,
                                     std::size_t rank, std::size_t window);

}  // namespace dp
