// Parameter server: every rank sends its gradient to rank 0, which returns the sum. It is the
// centralised baseline for the other topologies.
//
//     up      rank r > 0 encodes its own values and sends them to rank 0, which decodes them and
//             adds them to its own in the order of ranks
//     down    rank 0 encodes the sum once, replaces its own copy by the decoded payload and sends
//             that payload to all other ranks
//
// Every rank encodes each value once, so one residual of the bucket's size is enough; rank 0's
// residual holds the error of the encoded sum. A value of another rank is encoded twice: on its own
// rank and, as part of the sum, on rank 0.
//
// Order: segment by segment, and for each segment first up, then down, in the order of ranks. All
// ranks' lists follow this common order, so there is no deadlock (exchange_plan.hpp). The other
// ranks' next segments are in flight while rank 0 adds the current one.
//
// Cost: 2 hops. Rank 0 sends and receives the encoded bucket P-1 times, the other ranks once
// (parameter_server_wire_bytes). Rank 0's link is the bottleneck and carries P/2 times as much as a
// link of a ring. For messages and failures see segment_exchange.hpp.
#pragma once

#include <span>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"

namespace dp {

// The bytes that `rank` sends for one exchange with a codec of fixed payload size, start notices
// included. With W = sum over the segments s of the bucket of (20 + payload(s)):
//     (P-1) W + 20 (P-1) on rank 0,    W + 20 (P-1) on the others
[[nodiscard]] std::uint64_t parameter_server_wire_bytes(const ExchangeShape& shape,
                                                        std::span<const int> hosts,
                                                        std::size_t rank, const Codec& codec);

// The longest chain of messages: 2, to rank 0 and back.
[[nodiscard]] std::size_t parameter_server_hops(std::size_t ranks, std::span<const int> hosts);

// See Topology::wire_factor: P-1 on rank 0, 1 on the others.
[[nodiscard]] double parameter_server_wire_factor(std::size_t ranks, std::span<const int> hosts,
                                                  std::size_t rank);

[[nodiscard]] ExchangePlan parameter_server_plan(const ExchangeShape& shape,
                                                 std::span<const int> hosts, std::size_t rank,
                                                 std::size_t window);

}  // namespace dp
