#include "comm/topologies/topology.hpp"

#include <string>

#include "comm/exchange/segment_exchange.hpp"
#include "comm/topologies/direct.hpp"
#include "comm/topologies/grid.hpp"
#include "comm/topologies/hierarchical.hpp"
#include "comm/topologies/parameter_server.hpp"
#include "comm/topologies/ring.hpp"
#include "comm/topologies/tree.hpp"
#include "kernels/base/setting_error.hpp"

namespace dp {
namespace {

constexpr Topology kTopologies[] = {
    {"ring", "neighbour to neighbour, 2(P-1) hops; fewest bytes, each value encoded P times",
     ring_wire_bytes, ring_hops, ring_wire_factor, ring_plan},
    {"direct",
     "each chunk directly to its owner and back; as many bytes as ring, each value encoded twice",
     direct_wire_bytes, direct_hops, ring_wire_factor, direct_plan, true, true},
    {"grid", "direct within rows and columns of ranks; few messages, each value encoded 3 times",
     grid_wire_bytes, grid_hops, grid_wire_factor, grid_plan},
    {"tree", "binomial tree, 2 log2 P hops of the whole bucket; for small buckets", tree_wire_bytes,
     tree_hops, tree_wire_factor, tree_plan},
    {"hierarchical", "fp32 sums inside a host, a ring between hosts", hierarchical_wire_bytes,
     hierarchical_hops, hierarchical_wire_factor, hierarchical_plan, false},
    {"ps", "parameter server: all ranks to rank 0 and back", parameter_server_wire_bytes,
     parameter_server_hops, parameter_server_wire_factor, parameter_server_plan},
};

}  // namespace

std::unique_ptr<Exchange> Topology::make(const ExchangeSetup& setup) const {
  const auto rank = static_cast<std::size_t>(setup.transport->rank());
  return make_segment_exchange(setup, plan(shape_of(setup), setup.hosts, rank, setup.window));
}

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

std::string_view suitable_topology(const CodecSpec& codec, std::size_t ranks) {
  const std::string_view own = find_codec(codec.name)->topology;
  return own == "direct" && ranks >= kManyRanks ? "grid" : own;
}

}  // namespace dp
