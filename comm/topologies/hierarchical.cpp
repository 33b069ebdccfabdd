#include "comm/topologies/hierarchical.hpp"

#include "comm/topologies/ring.hpp"

namespace dp {
namespace {

using Take = PlanTask::Take;
using Give = PlanTask::Give;

// A rank's place among the hosts.
struct Place {
  std::vector<int> leaders;  // by host, in the order of ranks
  std::size_t host = 0;      // this rank's
  std::vector<int> members;  // of this rank's host, without the leader

  Place(std::span<const int> hosts, std::size_t ranks, std::size_t rank) {
    const auto host_of = [&](std::size_t r) {
      return hosts.empty() ? static_cast<int>(r) : hosts[r];
    };
    for (std::size_t r = 0; r < ranks; ++r) {
      bool is_leader = true;
      for (std::size_t before = 0; before < r; ++before) {
        is_leader = is_leader && host_of(before) != host_of(r);
      }
      const bool is_mine = host_of(r) == host_of(rank);
      if (is_leader && is_mine) host = leaders.size();
      if (is_leader) leaders.push_back(static_cast<int>(r));
      if (!is_leader && is_mine) members.push_back(static_cast<int>(r));
    }
  }
  [[nodiscard]] bool leads(std::size_t rank) const {
    return leaders[host] == static_cast<int>(rank);
  }
};

// Writes one rank's list, one group of segments after the other.
class Writer {
 public:
  Writer(ExchangePlan& plan, const Place& place)
      : plan_(plan), place_(place), l_(place.leaders.size()), me_(place.host) {
    to_all_ = place.members;
    if (l_ > 1) {
      const int right = place.leaders[(me_ + 1) % l_];
      right_ = {right};
      to_all_.insert(to_all_.begin(), right);
    }
  }

  void member(std::size_t group, std::size_t end) {
    const int leader = place_.leaders[me_];
    for (std::size_t hop = 0; hop < l_; ++hop) {
      for (std::size_t at = group; at < end; ++at) {
        plan_.add(chunk_sent(hop), at, {.give = Give::partial, .gives_exact = true}, {leader});
      }
    }
    for (std::size_t hop = l_ - 1; hop < 2 * l_ - 1; ++hop) {
      for (std::size_t at = group; at < end; ++at) {
        plan_.add(chunk_sent(hop), at,
                  {.from = leader, .take = Take::total, .takes_exact = l_ == 1});
      }
    }
  }

  void leader(std::size_t group, std::size_t end) {
    // The first chunk starts on the ring as soon as it is summed.
    for (std::size_t hop = 0; hop < l_; ++hop) {
      for (std::size_t at = group; at < end; ++at) sum_host(hop, at);
    }
    const int left = place_.leaders[(me_ + l_ - 1) % l_];
    const std::size_t hops = 2 * (l_ - 1);
    for (std::size_t hop = 0; hop < hops; ++hop) {
      const std::size_t chunk = chunk_sent(hop + 1);
      for (std::size_t at = group; at < end; ++at) {
        if (hop + 1 < l_) {
          const bool is_total = hop + 2 == l_;
          plan_.add(chunk, at,
                    {.from = left,
                     .take = Take::partial,
                     .give = is_total ? Give::total : Give::partial,
                     .holds_only_own_values = true},
                    is_total ? to_all_ : right_);
        } else {
          const std::vector<int>& to = hop + 1 < hops ? to_all_ : place_.members;
          plan_.add(chunk, at,
                    {.from = left,
                     .take = Take::total,
                     .give = to.empty() ? Give::nothing : Give::message},
                    to);
        }
      }
    }
  }

 private:
  // The chunk that this rank's leader sends on that hop of the ring.
  [[nodiscard]] std::size_t chunk_sent(std::size_t hop) const { return (me_ + 2 * l_ - hop) % l_; }

  // Adds up the host's values of the chunk that its leader sends on that hop. For hop 0, also sends
  // the sum on the ring; on a single host, returns it to the ranks.
  void sum_host(std::size_t hop, std::size_t at) {
    const bool is_all = l_ == 1;
    const Give give = is_all ? Give::total : hop == 0 ? Give::partial : Give::nothing;
    const std::vector<int>& to = is_all ? to_all_ : hop == 0 ? right_ : nobody_;
    const std::size_t chunk = chunk_sent(hop);
    if (place_.members.empty() && give != Give::nothing) {
      plan_.add(chunk, at, {.give = give}, to);
    }
    for (std::size_t i = 0; i < place_.members.size(); ++i) {
      PlanTask task{.from = place_.members[i],
                    .take = Take::partial,
                    .holds_only_own_values = i == 0,
                    .takes_exact = true};
      if (i + 1 < place_.members.size()) {
        plan_.add(chunk, at, task);
      } else {
        task.give = give;
        task.gives_exact = is_all;
        plan_.add(chunk, at, task, to);
      }
    }
  }

  ExchangePlan& plan_;
  const Place& place_;
  std::size_t l_, me_;
  std::vector<int> right_, to_all_, nobody_;  // targets
};

}  // namespace

std::vector<int> host_numbers(std::span<const std::string> names) {
  std::vector<int> numbers;
  for (const std::string& name : names) {
    numbers.push_back(
        static_cast<int>(std::find(names.begin(), names.end(), name) - names.begin()));
  }
  return numbers;
}

ExchangePlan hierarchical_plan(const ExchangeShape& shape, std::span<const int> hosts,
                               std::size_t rank, std::size_t window) {
  const Place place(hosts, shape.ranks, rank);
  ExchangePlan plan({shape.elements, place.leaders.size(), shape.segment});
  if (shape.ranks < 2) return plan;
  Writer writer(plan, place);
  const std::size_t segments = plan.shape.segments();
  for (std::size_t group = 0; group < segments; group += window) {
    const std::size_t end = std::min(group + window, segments);
    if (place.leads(rank)) {
      writer.leader(group, end);
    } else {
      writer.member(group, end);
    }
  }
  return plan;
}

std::uint64_t hierarchical_wire_bytes(const ExchangeShape& shape, std::span<const int> hosts,
                                      std::size_t rank, const Codec& codec) {
  if (shape.ranks < 2 || shape.elements == 0) return 0;
  const Place place(hosts, shape.ranks, rank);
  const std::size_t l = place.leaders.size();
  const ExchangeShape cut = {shape.elements, l, shape.segment};
  const auto exact = make_codec(CodecSpec::exact());
  const bool leads = place.leads(rank);
  std::uint64_t all = 0;
  for (std::size_t chunk = 0; chunk < l; ++chunk) {
    all += chunk_wire_bytes(cut, chunk, leads && l > 1 ? codec : *exact);
  }
  const std::uint64_t inside = leads ? place.members.size() * all : all;
  const std::uint64_t between = leads && l > 1
                                    ? 2 * all - chunk_wire_bytes(cut, (place.host + 1) % l, codec) -
                                          chunk_wire_bytes(cut, (place.host + 2) % l, codec)
                                    : 0;
  return inside + between + notice_bytes(shape.ranks);
}

std::size_t hierarchical_hops(std::size_t ranks, std::span<const int> hosts) {
  if (ranks < 2) return 0;
  const std::vector<int> leaders = Place(hosts, ranks, 0).leaders;
  const std::size_t l = leaders.size();
  if (l == 1) return 2;
  std::vector<std::size_t> inside;  // by host: 1 if it has several ranks
  for (const int leader : leaders) {
    const Place place(hosts, ranks, static_cast<std::size_t>(leader));
    inside.push_back(place.members.empty() ? 0 : 1);
  }
  std::size_t most = 0;
  for (std::size_t c = 0; c < l; ++c) most = std::max(most, inside[c] + inside[(c + l - 2) % l]);
  return 2 * (l - 1) + most;
}

double hierarchical_wire_factor(std::size_t ranks, std::span<const int> hosts, std::size_t rank) {
  if (ranks < 2) return 0.0;
  const Place place(hosts, ranks, rank);
  return place.leads(rank) ? ring_wire_factor(place.leaders.size()) : 0.0;
}

}  // namespace dp
