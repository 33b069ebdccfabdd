#include "app/planning/check_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "comm/mpi/network_interface.hpp"

namespace dp {
namespace {

// The addresses of the interfaces that a host uses, followed by zeros.
using Addresses = std::array<std::uint32_t, 8>;

// The interfaces through which this host sends to another host's addresses.
std::string describe_routes(const Addresses& to) {
  std::vector<std::string> routes;
  for (const std::uint32_t address : to) {
    if (address == 0) break;
    const std::string route = describe_route(address);
    if (std::ranges::find(routes, route) == routes.end()) routes.push_back(route);
  }
  return routes.empty() ? "not known" : fmt::format("{}", fmt::join(routes, " and "));
}

// Collective.
void find_routes(Communicator& comm, std::vector<HostPair>& pairs) {
  Addresses mine = {};
  std::size_t count = 0;
  for (const NetworkInterface& one : used_interfaces()) {
    if (count < mine.size()) mine[count++] = one.address;
  }
  const std::vector<Addresses> all = comm.all_gather(mine);
  std::string lines;  // this rank's routes, in the order of the pairs
  for (const HostPair& pair : pairs) {
    if (comm.rank() != pair.first_rank && comm.rank() != pair.second_rank) continue;
    const int other = comm.rank() == pair.first_rank ? pair.second_rank : pair.first_rank;
    lines += describe_routes(all[static_cast<std::size_t>(other)]) + "\n";
  }
  std::vector<std::istringstream> told;
  for (const std::string& text : comm.gather(lines)) told.emplace_back(text);
  if (comm.rank() != 0) return;
  for (HostPair& pair : pairs) {
    std::getline(told[static_cast<std::size_t>(pair.first_rank)], pair.there);
    std::getline(told[static_cast<std::size_t>(pair.second_rank)], pair.back);
  }
}

}  // namespace

// The circle method: host 0 stays, and the other hosts move on by one place in each round.
std::vector<std::vector<std::pair<std::size_t, std::size_t>>> tournament(std::size_t hosts) {
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> rounds;
  const std::size_t places = hosts + hosts % 2;  // if the number is odd, one host rests
  for (std::size_t round = 0; round + 1 < places; ++round) {
    const auto at = [&](std::size_t place) {
      return place == 0 ? 0 : 1 + (place - 1 + round) % (places - 1);
    };
    auto& pairs = rounds.emplace_back();
    for (std::size_t i = 0; i < places / 2; ++i) {
      const std::size_t a = at(i), b = at(places - 1 - i);
      if (std::max(a, b) < hosts) pairs.emplace_back(std::min(a, b), std::max(a, b));
    }
  }
  return rounds;
}

std::vector<HostPair> probe_hosts(Communicator& comm) {
  std::vector<int> leaders;  // the lowest rank of each host
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::string& host = comm.hosts()[static_cast<std::size_t>(rank)];
    const auto is_here = [&](int leader) {
      return comm.hosts()[static_cast<std::size_t>(leader)] == host;
    };
    if (std::ranges::none_of(leaders, is_here)) leaders.push_back(rank);
  }
  std::vector<HostPair> all;
  for (const auto& round : tournament(leaders.size())) {
    std::optional<int> partner;
    for (const auto& [a, b] : round) {
      if (comm.rank() == leaders[a]) partner = leaders[b];
      if (comm.rank() == leaders[b]) partner = leaders[a];
    }
    const std::vector<LinkProbe> found = comm.all_gather(probe_pair(comm, partner));
    for (const auto& [a, b] : round) {
      all.push_back({.first_rank = leaders[a],
                     .second_rank = leaders[b],
                     .to_first = found[static_cast<std::size_t>(leaders[a])],
                     .to_second = found[static_cast<std::size_t>(leaders[b])]});
    }
  }
  std::ranges::sort(
      all, {}, [](const HostPair& pair) { return std::pair(pair.first_rank, pair.second_rank); });
  find_routes(comm, all);
  return all;
}

NetworkPorts ports_of(const LinkProbe& ring, std::span<const HostPair> pairs,
                      std::span<const int> hosts) {
  const auto count = static_cast<std::size_t>(*std::ranges::max_element(hosts)) + 1;
  NetworkPorts ports = NetworkPorts::alike(count, ring.bytes_per_s, ring.latency_s);
  if (count == 1) ports.inside_bytes_per_s = ring.bytes_per_s;
  const auto raise = [&](double& port_bytes_per_s, double bytes_per_s) {
    if (bytes_per_s > LinkProbe::kClearly * ring.bytes_per_s) {
      port_bytes_per_s = std::max(port_bytes_per_s, bytes_per_s);
    }
  };
  for (const HostPair& pair : pairs) {
    const auto first = static_cast<std::size_t>(hosts[static_cast<std::size_t>(pair.first_rank)]);
    const auto second = static_cast<std::size_t>(hosts[static_cast<std::size_t>(pair.second_rank)]);
    raise(ports.send_bytes_per_s[first], pair.to_second.bytes_per_s);
    raise(ports.receive_bytes_per_s[second], pair.to_second.bytes_per_s);
    raise(ports.send_bytes_per_s[second], pair.to_first.bytes_per_s);
    raise(ports.receive_bytes_per_s[first], pair.to_first.bytes_per_s);
  }
  return ports;
}

NetworkPorts measure_ports(Communicator& comm, const LinkProbe& ring, std::span<const int> hosts) {
  const bool differ = comm.local_size() < comm.size() && ring.has_faster_links();
  NetworkPorts ports = ports_of(ring, differ ? probe_hosts(comm) : std::vector<HostPair>(), hosts);
  ports.burst_bytes = probe_burst(comm, ring);
  return ports;
}

}  // namespace dp
