// The ring: a bandwidth-optimal all-reduce of a bucket in 2(P-1) hops from neighbour to neighbour.
//
// A bucket is cut into P chunks, a chunk into segments, and every message is one segment that goes
// from rank r to rank r+1 mod P. On *hop* h, rank r sends chunk (r - h) mod P and receives chunk
// (r - 1 - h) mod P:
//
//     hops 0 .. P-2      reduce-scatter: the message holds a partial sum; the receiver decodes it,
//                        adds its own values, and encodes the result for the next hop. After hop
//                        P-2, rank r has the complete sum of chunk (r + 1) mod P and is the chunk's
//                        *owner*
//     hops P-1 .. 2P-3   all-gather: the owner encodes its sum and sends it on hop P-1; the other
//                        ranks decode this payload and forward it verbatim
//
//     P = 3, chunk 0:    0 --a0--> 1 --a0+a1--> 2 (owner) --sum--> 0 --sum--> 1
//
// Every rank encodes each chunk exactly once, so one residual of the bucket's size is enough. The
// owner replaces its own sum by its decoded payload, so that all ranks hold the same bits.
//
// Order: segments are taken in groups of `window`. A group goes hop by hop, and a hop segment by
// segment. While a rank decodes and encodes one segment, the other segments of the group are on the
// wire. The next group starts during the last hops of the current one. All ranks' lists follow one
// common order of messages, (group, hop, segment, rank), so there is no deadlock
// (exchange_plan.hpp).
//
// Cost: 2(P-1) hops. A value is encoded P times, and a rank sends 2(P-1)/P of the encoded bucket,
// plus frames (ring_wire_bytes). For messages and failures see segment_exchange.hpp.
#pragma once

#include <span>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"

namespace dp {

// The bytes that `rank` sends for one exchange with a codec of fixed payload size, start notices
// included. With W(c) = sum over the segments s of chunk c of (20 + payload(s)):
//     2 sum_c W(c) - W(r+1) - W(r+2) + 20 (P-1),       indices modulo P
// since a rank sends all chunks but one in each half of the hops.
[[nodiscard]] std::uint64_t ring_wire_bytes(const ExchangeShape& shape, std::span<const int> hosts,
                                            std::size_t rank, const Codec& codec);

// The longest chain of messages: the 2(P-1) messages of a chunk from neighbour to neighbour.
[[nodiscard]] std::size_t ring_hops(std::size_t ranks, std::span<const int> hosts);

// See Topology::wire_factor: 2(P-1)/P on every rank. The factor of "direct" is the same.
[[nodiscard]] double ring_wire_factor(std::size_t ranks, std::span<const int> hosts = {},
                                      std::size_t rank = 0);

[[nodiscard]] ExchangePlan ring_plan(const ExchangeShape& shape, std::span<const int> hosts,
                                     std::size_t rank, std::size_t window);

}  // namespace dp
