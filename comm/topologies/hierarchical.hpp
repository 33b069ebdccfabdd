// Hierarchical: ranks add up in fp32 inside every host, one ring connects the hosts, and all ranks
// get the result.
//
// The lowest rank of a host is its *leader*. A bucket is cut into L chunks, where L is the number
// of hosts.
//
//     inside      every other rank sends its values to its leader in fp32; the leader adds them to
//                 its own in the order of ranks
//     between     the leaders' sums are encoded and go around a ring of the L leaders (ring.hpp);
//                 only leaders hold residuals
//     inside      a leader forwards each total to its host's ranks unchanged, so all ranks decode
//                 the same bytes
//
//     hosts {0 1} {2 3}:    1 ==> 0 --a--> 2 ==> 3,    3 ==> 2 --b--> 0 ==> 1
//                           (==> inside a host, --> between hosts; a and b are the two chunks)
//
// A host's link therefore carries the bytes of one rank on a ring, not of all its ranks, and a
// value is encoded L times. Inside a host MPI moves messages through shared memory. On a single
// host nothing is encoded, and totals are fp32, too.
//
// Order: segments are taken in groups of `window`. A group begins with all messages inside the
// hosts, chunk after chunk as the ring needs them. Then come the messages of the ring, whose totals
// are forwarded inside the hosts as they arrive. All ranks' lists follow this common order, so
// there is no deadlock (exchange_plan.hpp).
//
// Cost: 2(L-1) hops between hosts and one hop inside a host before and after them. This makes 2L
// hops, also for L = 1. A leader takes its host's messages one after the other.
// hierarchical_wire_bytes computes the bytes, including those of messages inside hosts. For
// messages and failures see segment_exchange.hpp.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/exchange/exchange_plan.hpp"
#include "comm/exchange/message_header.hpp"

namespace dp {

// `names` are the ranks' hosts, by rank. Returns for each rank the lowest rank whose host has the
// same name.
[[nodiscard]] std::vector<int> host_numbers(std::span<const std::string> names);

// The bytes that `rank` sends for one exchange with a codec of fixed payload size, start notices
// included. `hosts` has each rank's host as a number, the same for ranks on one host; if it is
// empty, each rank is on its own host. With W(c) as in ring.hpp for the L chunks, F(c) the same for
// fp32, and m the number of ranks of the host:
//     sum_c F(c) + 20 (P-1)                                               a rank that does not lead
//     2 sum_c W(c) - W(l+1) - W(l+2) + (m-1) sum_c W(c) + 20 (P-1)        leader l = 0 .. L-1
//     (P-1) F(0) + 20 (P-1)                                               leader of a single host
[[nodiscard]] std::uint64_t hierarchical_wire_bytes(const ExchangeShape& shape,
                                                    std::span<const int> hosts, std::size_t rank,
                                                    const Codec& codec);

// The number of messages in the longest chain, with L hosts in a ring. Chunk c is summed from host
// c on, and host c-2 (mod L) is the last to receive its total. Each of these two hosts adds a
// message if it has several ranks:
//     2(L-1) + max over c of (n(c) + n(c-2)), n(h) = 1 if host h has several ranks, else 0    L > 1
//     2                                                                                       L = 1
[[nodiscard]] std::size_t hierarchical_hops(std::size_t ranks, std::span<const int> hosts);

// See Topology::wire_factor: 2(L-1)/L on leaders, 0 on other ranks.
[[nodiscard]] double hierarchical_wire_factor(std::size_t ranks, std::span<const int> hosts,
                                              std::size_t rank);

[[nodiscard]] ExchangePlan hierarchical_plan(const ExchangeShape& shape, std::span<const int> hosts,
                                             std::size_t rank, std::size_t window);

}  // namespace dp
