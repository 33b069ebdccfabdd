// Parameter server: everyone sends its gradient to rank 0, which returns the sum. The centralised
// topology that the others are compared with.
//
//     up      rank r > 0 encodes its own values and sends them to rank 0, which decodes them and
//             adds them to its own in the order of ranks
//     down    rank 0 encodes the sum once, replaces its own copy by the decoded payload and sends
//             it to all
//
// Every rank encodes each value once, so one residual of the bucket's size serves; rank 0's takes
// what the coding of the sum drops. A value passes two encodes.
//
// Order: segment by segment; within a segment in the order of ranks, first up, then down. In that
// order of all messages every rank's sends and receives come as in its list: there is no deadlock
// (exchange_plan.hpp). The others' next segments are on their way while rank 0 adds this one.
//
// Cost: 2 steps; rank 0 sends and receives (P-1) times the bucket, encoded, the others once:
// parameter_server_wire_bytes. Rank 0's link is the bottleneck, (P/2) times a ring's. Messages and
// failures: segment_exchange.hpp.
#pragma once

#include <memory>

#include "comm/exchange.hpp"
#include "comm/exchange_plan.hpp"

namespace dp {

// What `rank` sends for one exchange with a codec of fixed payload size, start notices included:
// with W = sum over the segments s of the bucket of (16 + payload(s)),
//     (P-1) W + 16 (P-1) on rank 0,    W + 16 (P-1) on the others
[[nodiscard]] std::uint64_t parameter_server_wire_bytes(const ExchangeShape& shape,
                                                        std::size_t rank, const Codec& codec);

// The longest chain of messages, one after the other: 2, to rank 0 and back.
[[nodiscard]] std::size_t parameter_server_hops(std::size_t ranks);

[[nodiscard]] ExchangePlan parameter_server_plan(const ExchangeShape& shape, std::size_t rank);

[[nodiscard]] std::unique_ptr<Exchange> make_parameter_server(const ExchangeSetup& setup);

}  // namespace dp
