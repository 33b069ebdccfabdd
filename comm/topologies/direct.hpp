// Direct: every rank sends its values of each chunk to the rank that owns the chunk, and gets all
// totals back.
//
// A bucket is cut into P chunks, and each rank owns one of them: rank r owns chunk r - b (mod P) of
// bucket b. The owners rotate from bucket to bucket, because encoded values of varying length are
// not spread evenly over a bucket. A rank that owned the same place in all buckets might have to
// send more than others. On *shift* d = 1 .. P-1:
//
//     scatter    rank r encodes its own values of the chunk of rank r+d and sends them there. Owner
//                o decodes them and adds them to its own, in the order of ranks o-1, o-2, ...
//     gather     the owner encodes the complete sum once, keeps in its residual what the codec
//                dropped, replaces its sum by the decoded payload, and sends that payload to all
//                other ranks
//
//     P = 3, bucket 0, chunk 0:  2 --c0--> 0 (owner) <--b0-- 1,  then  0 --sum--> 1, 0 --sum--> 2
//
// A value is encoded twice for any number of ranks (P times on a ring), which is better for coarse
// codecs and many ranks. Each rank encodes each chunk once: P-1 chunks as contributions to others,
// its own chunk as the sum. Hence one residual of the bucket's size is enough.
//
// Order: segments are taken in groups of `window`. A group consists of all shifts of the scatter,
// then the totals segment by segment. All ranks' lists follow one common order of messages, (group,
// scatter, shift, segment), (group, gather, segment, shift), so there is no deadlock
// (exchange_plan.hpp). On each shift every rank sends to one rank and receives from one, so both
// directions of each link are busy.
//
// Cost: 2 hops and 2(P-1) messages per segment. A rank sends 2(P-1)/P of the encoded bucket, plus
// frames (direct_wire_bytes). There are no start notices if messages are brief (ExchangeShape). For
// messages and failures see segment_exchange.hpp.
#pragma once

#include <span>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"

namespace dp {

// The bytes that `rank` sends for one exchange with a codec of fixed payload size, start notices
// included. With W(c) = sum over the segments s of chunk c of (20 + payload(s)), and o the chunk
// that `rank` owns:
//     sum_c W(c) - W(o) + (P-1) W(o) + 20 (P-1)
[[nodiscard]] std::uint64_t direct_wire_bytes(const ExchangeShape& shape,
                                              std::span<const int> hosts, std::size_t rank,
                                              const Codec& codec);

// The longest chain of messages: 2, to a chunk's owner and back.
[[nodiscard]] std::size_t direct_hops(std::size_t ranks, std::span<const int> hosts);

[[nodiscard]] ExchangePlan direct_plan(const ExchangeShape& shape, std::span<const int> hosts,
                                       std::size_t rank, std::size_t window);

}  // namespace dp
