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
  // On rank 0: the interface and address by which the first host sends to the second one, and the
  // second one's for the way back.
  std::string there = {}, back = {};
};

// Collective: probes every pair of hosts, several pairs at the same time, each host in one pair.
// Takes about half a second for each of the H - 1 rounds of H hosts. All ranks get the same list;
// only rank 0 gets the routes.
[[nodiscard]] std::vector<HostPair> probe_hosts(Communicator& comm);

// The port of each host: the rate of the ring's slowest link or, if the host has a clearly faster
// link to another host, that link's rate. On one host it is the rate between its ranks. hosts: each
// rank's host as a number from 0.
[[nodiscard]] NetworkPorts ports_of(const LinkProbe& ring, std::span<const HostPair> pairs,
                                    std::span<const int> hosts);
// Collective: the same, after measuring pairs of hosts if the ring's links differ.
[[nodiscard]] NetworkPorts measure_ports(Communicator& comm, const LinkProbe& ring,
                                         std::span<const int> hosts);

// The rounds of a tournament in which each host meets every other host once: pairs of hosts.
[[nodiscard]] std::vector<std::vector<std::pair<std::size_t, std::size_t>>> tournament(
    std::size_t hosts);

}  // namespace dp
