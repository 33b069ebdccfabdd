// The ring: all-reduce of a bucket in 2(P-1) hops over the neighbours, bandwidth-optimal.
//
// A bucket is cut into P *chunks* (the first n mod P of them one float longer), a chunk into
// *segments*. Every message is one segment and goes from rank r to rank r+1 mod P. On *hop* h, rank
// r sends chunk (r - h) mod P and receives chunk (r - 1 - h) mod P:
//
//     hops 0 .. P-2      reduce-scatter: the message holds a partial sum; the receiver decodes it,
//                        adds its own values, and encodes the result for the next hop
//     hop P-1            the rank that has completed the sum of a chunk, its *owner*, encodes it;
//     here
//                        rank r sends chunk (r + 1) mod P, which it owns
//     hops P-1 .. 2P-3   all-gather: the owner's payload, forwarded verbatim and decoded by all
//
//     P = 3, chunk 0:    0 --a0--> 1 --a0+a1--> 2 (owner) --sum--> 0 --sum--> 1
//
// So every rank encodes each chunk exactly once, and one residual of the bucket's size serves. The
// owner replaces its own sum by its decoded payload: all ranks hold the same bits.
//
// Order: messages go and come in one fixed order, so a receive never needs to ask which segment it
// has got. Segments are taken in groups of `window`; within a group hop by hop, within a hop
// segment by segment. While a rank decodes and encodes one segment, the others of the group are on
// the wire, and the next group starts while the last hops of this one run.
//
// Wire format of a message: a header of 16 bytes, then the payload.
//     u32 kind     0x44500001 a segment, 0x44500002 a start notice; + 0x100: some rank's input was
//     not
//                  finite (travels with the chunk to all ranks)
//     u32 step     lower 32 bits
//     u32 bucket
//     u32 number   of the message in this bucket and step, from 0
// A rank that starts a bucket tells all others with a *start notice*, a header alone: so waiting
// for a rank that has not begun can be told from waiting for the network.
//
// A rank whose own values of a segment are not finite counts as one with zeros: it passes on what
// it received, and the flag. Where even that cannot be encoded it sends zeros and keeps its
// residual.
//
// Cost: 2(P-1) hops; a rank sends 2(P-1)/P of the bucket, encoded, and the headers:
// ring_wire_bytes. Buckets of no floats and rings of one rank exchange nothing.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "comm/exchange.hpp"

namespace dp {

// How a bucket is cut. Pure arithmetic, the same on all ranks.
struct RingShape {
  std::size_t elements = 0;
  std::size_t ranks = 1;
  std::size_t segment = 65536;

  [[nodiscard]] std::size_t chunk_begin(std::size_t chunk) const {
    return elements / ranks * chunk + std::min(chunk, elements % ranks);
  }
  [[nodiscard]] std::size_t chunk_size(std::size_t chunk) const {
    return elements / ranks + (chunk < elements % ranks ? 1 : 0);
  }
  // Of the longest chunk. In shorter ones the last may be missing.
  [[nodiscard]] std::size_t segments() const { return (chunk_size(0) + segment - 1) / segment; }
  [[nodiscard]] std::size_t hops() const { return 2 * (ranks - 1); }
};

inline constexpr std::size_t kRingHeaderBytes = 16;

// What `rank` sends for one exchange with a codec of fixed payload size, start notices included:
// with W(c) = sum over the segments s of chunk c of (16 + payload(s)),
//     2 sum_c W(c) - W(r+1) - W(r+2) + 16 (P-1),       indices modulo P
// since in each half a rank sends all chunks but one.
[[nodiscard]] std::uint64_t ring_wire_bytes(const RingShape& shape, std::size_t rank,
                                            const Codec& codec);

[[nodiscard]] std::unique_ptr<Exchange> make_ring(const ExchangeSetup& setup);

}  // namespace dp
