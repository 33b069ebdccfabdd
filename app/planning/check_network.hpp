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

// Both directions between two hosts, measured while both send.
struct HostPair {
  int first_rank = 0, second_rank = 0;  // the lowest ranks of the two hosts
  LinkProbe to_first, to_second;
  // On rank 0: the first host's interface and address on the way to the second one, and the second
  // one's on the way back.
  std::string there = {}, back = {};
};

// Collective: every pair of hosts, several pairs at the same time, each host in one of them. About
// half a second for each of H - 1 rounds. The same list on all ranks, but for the routes.
[[nodiscard]] std::vector<HostPair> probe_hosts(Communicator& comm);

// The port of each host: the rate of the ring's slowest link, or where the host has a clearly
// faster link to some other one, that link's. On one host the rate is that between its ranks.
// `hosts` has each rank's host as a number from 0.
[[nodiscard]] NetworkPorts ports_of(const LinkProbe& ring, std::span<const HostPair> pairs,
                                    std::span<const int> hosts);
// Collective: the same, with pairs of hosts measured where the ring's links differ.
[[nodiscard]] NetworkPorts measure_ports(Communicator& comm, const LinkProbe& ring,
                                         std::span<const int> hosts);

// The rounds of a tournament in which each of `hosts` meets each other once: pairs of hosts.
[[nodiscard]] std::vector<std::vector<std::pair<std::size_t, std::size_t>>> tournament(
    std::size_t hosts);

}  // namespace dp
