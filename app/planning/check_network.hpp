// Measures the links between hosts, for --check and --plan.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "comm/network/fluid_network.hpp"
#include "comm/network/link_probe.hpp"

namespace dp {

// The two directions between two hosts, measured while both hosts send.
struct HostPair {
  int first_rank = 0, second_rank = 0;  // the lowest ranks of the two hosts
  LinkProbe to_first, to_second;
  // On rank 0: the interface and address through which the first host sends to the second one
  // (`there`), and through which the second host sends back (`back`).
  std::string there = {}, back = {};
};

// Collective. Probes every pair of hosts. The pairs are spread over rounds of about half a second.
// In a round, each host belongs to one pair, and all pairs are probed at the same time. H hosts
// need H - 1 rounds. All ranks get the same list, but only rank 0 gets the routes.
[[nodiscard]] std::vector<HostPair> probe_hosts(Communicator& comm);

// Returns the network port of each host. A port has the bandwidth of the ring's slowest link. If
// the host has a clearly faster link to another host, the port has the bandwidth of that link
// instead. If there is only one host, the port has the bandwidth between the ranks of that host.
// hosts: each rank's host as a number from 0.
[[nodiscard]] NetworkPorts ports_of(const LinkProbe& ring, std::span<const HostPair> pairs,
                                    std::span<const int> hosts);
// Collective. Returns the ports of the hosts. If the ring's links differ, it first measures the
// pairs of hosts.
[[nodiscard]] NetworkPorts measure_ports(Communicator& comm, const LinkProbe& ring,
                                         std::span<const int> hosts);

// The rounds of a tournament in which each host meets every other host once. A round is a list of
// pairs of hosts.
[[nodiscard]] std::vector<std::vector<std::pair<std::size_t, std::size_t>>> tournament(
    std::size_t hosts);

}  // namespace dp
