// Tree: a binomial tree of ranks adds towards rank 0, whose total comes back the same way.
//
// The parent of rank r is r without its lowest set bit; its children are r + 1, r + 2, r + 4, ...
// as far as these are below that bit (for rank 0: as far as there are ranks).
//
//     P = 8:             0
//                 /      |    \         up      a rank adds its children's partial sums to its own
//                4       2     1                values, nearest first, encodes the result and sends
//               / \      |                      it to its parent
//              6   5     3              down    rank 0 encodes the total once; its payload travels
//              |                                down verbatim, farthest child first
//              7
//
// Every rank encodes each value once, so one residual of the bucket's size serves; rank 0's takes
// what the coding of the total drops.
//
// Order: segments in groups of `window`; within a group all segments up, then all down. In the
// order (group, up, segment, from the leaves to the root), (group, down, segment, from the root to
// the leaves) every rank's sends and receives come as in its list: there is no deadlock
// (exchange_plan.hpp).
//
// For small buckets, where latency is the cost: 2 floor(log2 P) hops instead of a ring's 2(P-1),
// but each of the whole bucket: tree_wire_bytes. A value passes up to floor(log2 P) + 1 encodes.
// Messages and failures: segment_exchange.hpp.
#pragma once

#include <memory>

#include "comm/exchange.hpp"
#include "comm/exchange_plan.hpp"

namespace dp {

// What `rank` sends for one exchange with a codec of fixed payload size, start notices included:
// with W = sum over the segments s of the bucket of (16 + payload(s)),
//     (children(r) + (1 if r > 0)) W + 16 (P-1)
[[nodiscard]] std::uint64_t tree_wire_bytes(const ExchangeShape& shape, std::size_t rank,
                                            const Codec& codec);

// The longest chain of messages, one after the other: 2 floor(log2 P). A rank is as far from the
// root as its number has set bits, and 2^k - 1, the first number with k of them, is among the ranks
// where P is 2^k or more.
[[nodiscard]] std::size_t tree_hops(std::size_t ranks);

[[nodiscard]] ExchangePlan tree_plan(const ExchangeShape& shape, std::size_t rank,
                                     std::size_t window);

[[nodiscard]] std::unique_ptr<Exchange> make_tree(const ExchangeSetup& setup);

}  // namespace dp
