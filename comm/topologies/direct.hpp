// Direct: every rank sends each other rank the chunk that it owns, and gets all totals back.
//
// A bucket is cut into P chunks, of which each rank owns one: rank r chunk r - bucket (mod P). The
// owners rotate from bucket to bucket, because codes of varying length are not spread evenly over a
// bucket: a rank that owned the same place in all buckets might carry more than others. On *shift*
// d = 1 .. P-1:
//
//     scatter    rank r encodes its own values of the chunk of rank r+d and sends them there; the
//                owner decodes them and adds them to its own, in the order r-1, r-2, ... of ranks
//     gather     the owner encodes the complete sum once, keeps what the codec dropped in its
//                residual, replaces its sum by the decoded payload, and sends it to all others
//
//     P = 3, bucket 0, chunk 0:  2 --c0--> 0 (owner) <--b0-- 1,  then  0 --sum--> 1, 0 --sum--> 2
//
// A value is encoded twice for any number of ranks (P times on a ring), which is better for coarse
// codecs and many ranks. Each rank encodes each chunk once: P-1 chunks as contributions to others,
// its own chunk as the sum. Hence one residual of the bucket's size is enough.
//
// Order: segments are taken in groups of `window`; a group consists of all shifts of the scatter,
// then the totals segment by segment. If all messages are put in the order (group, scatter, shift,
// segment), (group, gather, segment, shift), every rank's sends and receives are in the order of
// its list, so there is no deadlock (exchange_plan.hpp). On each shift every rank sends to one rank
// and receives from one, so both directions of each link are busy.
//
// Cost: 2 hops and 2(P-1) messages per segment; a rank sends 2(P-1)/P of the encoded bucket and the
// frames (direct_wire_bytes). There are no start notices if messages are brief (ExchangeShape). For
// messages and failures see segment_exchange.hpp.
#pragma once

#include <span>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"

namespace dp {

// The bytes that `rank` sends for one exchange with a codec of fixed payload size, start notices
// included. With W(c) = sum over the segments s of chunk c of (20 + payload(s)), and o the chunk
// that it owns:
//     sum_c W(c) - W(o) + (P-1) W(o) + 20 (P-1)
[[nodiscard]] std::uint64_t direct_wire_bytes(const ExchangeShape& shape,
                                              std::span<const int> hosts, std::size_t rank,
                                              const Codec& codec);

// The longest chain of messages: 2, to a chunk's owner and back.
[[nodiscard]] std::size_t direct_hops(std::size_t ranks, std::span<const int> hosts);

[[nodiscard]] ExchangePlan direct_plan(const ExchangeShape& shape, std::span<const int> hosts,
                                       std::size_t rank, std::size_t window);

}  // namespace dp
