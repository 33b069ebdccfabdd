// The list of topologies. A topology defines who sends to whom. To add one, write a file like
// ring.cpp, which makes every rank's list of messages, and add a row in topology.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "comm/exchange/exchange.hpp"
#include "comm/exchange/exchange_plan.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {

struct Topology {
  std::string_view name;
  std::string_view help;  // one line
  // The exact number of bytes that `rank` sends for one exchange of a bucket with a codec of fixed
  // payload size, start notices included. `hosts` is as in ExchangeSetup::hosts, by rank.
  std::uint64_t (*wire_bytes)(const ExchangeShape& shape, std::span<const int> hosts,
                              std::size_t rank, const Codec& codec);
  // The length of the longest chain of messages in one exchange of a bucket. In a chain, each
  // message waits for the message before it, so the exchange takes at least this many latencies. 0
  // with a single rank.
  std::size_t (*hops)(std::size_t ranks, std::span<const int> hosts);
  // The encoded bytes that `rank` sends, as a multiple of the whole bucket's payload. 0 if the rank
  // encodes nothing. If the ranks of a host add up their values in fp32, only bytes sent to other
  // hosts count.
  double (*wire_factor)(std::size_t ranks, std::span<const int> hosts, std::size_t rank);
  // The list of messages of `rank` for a bucket. `hosts` is as above.
  ExchangePlan (*plan)(const ExchangeShape& shape, std::span<const int> hosts, std::size_t rank,
                       std::size_t window);
  // Whether every rank encodes its own values. The rank's residual then shows which values the rank
  // has sent.
  bool encodes_on_all_ranks = true;
  // Whether each rank owns a chunk whose size may depend on the rate of its link
  // (owner_weights.hpp).
  bool has_owner_weights = false;

  [[nodiscard]] std::unique_ptr<Exchange> make(const ExchangeSetup& setup) const;
};

// All topologies, in the order of --help.
[[nodiscard]] std::span<const Topology> topology_list();

// Throws an Error(usage) that begins with "--topology NAME: " and lists the known names.
[[nodiscard]] const Topology& find_topology(std::string_view name);

// The name of the topology for a codec if the user does not choose one: the codec's own, or empty,
// which means "ring". From kManyRanks ranks on, "grid" replaces "direct", because a message then
// costs more than the payload in it (experiments/studies/host_scan.md).
inline constexpr std::size_t kManyRanks = 24;
[[nodiscard]] std::string_view suitable_topology(const CodecSpec& codec, std::size_t ranks);

}  // namespace dp
