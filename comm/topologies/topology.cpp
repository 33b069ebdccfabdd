#include "comm/topologies/topology.hpp"

#include <string>

#include "comm/topologies/direct.hpp"
#include "comm/topologies/hierarchical.hpp"
#include "comm/topologies/parameter_server.hpp"
#include "comm/topologies/ring.hpp"
#include "comm/topologies/tree.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

// For formulas that do not depend on hosts.
template <auto kFormula>
std::uint64_t without_hosts(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                            const Codec& codec) {
  return kFormula(shape, rank, codec);
}

template <auto kFormula>
std::size_t without_hosts(std::size_t ranks, std::span<const int>) {
  return kFormula(ranks);
}

template <auto kFormula>
double without_hosts(std::size_t ranks, std::span<const int>, std::size_t rank) {
  return kFormula(ranks, rank);
}

double ring_factor(std::size_t ranks, std::span<const int>, std::size_t) {
  return ring_wire_factor(ranks);
}

template <auto kPlan>
ExchangePlan without_hosts(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                           std::size_t window) {
  return kPlan(shape, rank, window);
}

ExchangePlan server_plan(const ExchangeShape& shape, std::span<const int>, std::size_t rank,
                         std::size_t) {
  return parameter_server_plan(shape, rank);
}

constexpr Topology kTopologies[] = {
    {"ring", "neighbour to neighbour, 2(P-1) hops; fewest bytes, P encodes a value", make_ring,
     without_hosts<ring_wire_bytes>, without_hosts<ring_hops>, ring_factor,
     without_hosts<ring_plan>},
    {"direct", "each chunk straight to its owner and back; a ring's bytes, 2 encodes a value",
     make_direct, without_hosts<direct_wire_bytes>, without_hosts<direct_hops>, ring_factor,
     without_hosts<direct_plan>},
    {"tree", "binomial tree, 2 log2 P steps of the whole bucket; for small ones", make_tree,
     without_hosts<tree_wire_bytes>, without_hosts<tree_hops>, without_hosts<tree_wire_factor>,
     without_hosts<tree_plan>},
    {"hierarchical", "fp32 sums inside a host, a ring between hosts", make_hierarchical,
     hierarchical_wire_bytes, hierarchical_hops, hierarchical_wire_factor, hierarchical_plan,
     false},
    {"ps", "parameter server: all to rank 0 and back", make_parameter_server,
     without_hosts<parameter_server_wire_bytes>, without_hosts<parameter_server_hops>,
     without_hosts<parameter_server_wire_factor>, server_plan},
};

}  // namespace

std::span<const Topology> topology_list() { return kTopologies; }

const Topology& find_topology(std::string_view name) {
  std::string known;
  for (const Topology& topology : kTopologies) {
    if (topology.name == name) return topology;
    if (!known.empty()) known += ", ";
    known += topology.name;
  }
  throw SettingError(Setting{"topology"}, name, "unknown topology; known: " + known);
}

}  // namespace dp
