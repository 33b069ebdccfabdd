// Tree: the ranks form a binomial tree. Partial sums go up to rank 0, whose total comes back down
// the same way.
//
// The parent of rank r is r without its lowest set bit. The children of r are r+1, r+2, r+4, ...:
// each power of two below r's lowest set bit gives one child, if that rank exists. Rank 0 has no
// set bit, so its children are all of 1, 2, 4, ... that exist.
//
//     P = 8:             0
//                 /      |    \         up      a rank adds its children's partial sums to its own
//                4       2     1                values, nearest first, encodes the result and sends
//               / \      |                      it to its parent
//              6   5     3              down    rank 0 encodes the total once; its payload travels
//              |                                down verbatim, farthest child first
//              7
//
// Every rank encodes each value once, so one residual of the bucket's size is enough; rank 0's
// residual holds the error of the encoded total.
//
// Order: segments are taken in groups of `window`. In a group, all segments go up, then all go
// down. All ranks' lists follow one common order of messages, (group, up, segment, from the leaves
// to the root), (group, down, segment, from the root to the leaves), so there is no deadlock
// (exchange_plan.hpp).
//
// A tree is for small buckets, whose cost is latency: it takes 2 floor(log2 P) hops instead of a
// ring's 2(P-1), but each hop carries the whole bucket (tree_wire_bytes). A value is encoded up to
// floor(log2 P) + 1 times. For messages and failures see segment_exchange.hpp.
#pragma once

#include <span>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"

namespace dp {

// The bytes that `rank` sends for one exchange with a codec of fixed payload size, start notices
// included. For rank r of P, with W = sum of 20 + payload(s) over the bucket's segments s:
//     (children(r) + (1 if r > 0)) W + 20 (P-1)
[[nodiscard]] std::uint64_t tree_wire_bytes(const ExchangeShape& shape, std::span<const int> hosts,
                                            std::size_t rank, const Codec& codec);

// The longest chain of messages: 2 floor(log2 P). A rank's distance from the root is the count of 1
// bits in its binary form. The lowest rank at distance k is 2^k - 1, which exists if P is 2^k or
// more.
[[nodiscard]] std::size_t tree_hops(std::size_t ranks, std::span<const int> hosts);

// See Topology::wire_factor: children(r) + (1 if r > 0).
[[nodiscard]] double tree_wire_factor(std::size_t ranks, std::span<const int> hosts,
                                      std::size_t rank);

[[nodiscard]] ExchangePlan tree_plan(const ExchangeShape& shape, std::span<const int> hosts,
                                     std::size_t rank, std::size_t window);

}  // namespace dp
