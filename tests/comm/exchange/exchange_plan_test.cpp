// The lists of messages of every topology, run without MPI for up to 32 ranks: every rank's values
// come into the sum once, every total reaches all, no residual is used twice, and nothing gets
// stuck even where a send does not end before its receive is posted. The longest chain of messages
// is what the topology says.
#include "comm/exchange/exchange_plan.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>

#include "comm/topologies/direct.hpp"
#include "comm/topologies/grid.hpp"
#include "comm/topologies/hierarchical.hpp"
#include "comm/topologies/parameter_server.hpp"
#include "comm/topologies/ring.hpp"
#include "comm/topologies/topology.hpp"
#include "comm/topologies/tree.hpp"

namespace dp {
namespace {

using Take = PlanTask::Take;
using Give = PlanTask::Give;

// Whose values are in a sum, as bits; for a total, who encoded it; and how many messages, each of
// which waited for the one before, have led to it.
struct Content {
  std::uint64_t ranks = 0;
  int total_of = -1;
  std::size_t hops = 0;
};

struct Message {
  std::uint32_t segment = 0;
  bool is_total = false, is_exact = false;
  Content content;
  std::size_t sender_slot = 0;
};

// One rank's list with its slots, carried out by the rules of segment_exchange.cpp.
struct Rank {
  Rank(ExchangePlan list, int number, std::size_t window)
      : plan(std::move(list)), free_receives(2 * window), sends(window) {
    values.assign(plan.segments.size(), {.ranks = std::uint64_t{1} << number});
    encodes.assign(plan.segments.size(), 0);
    while (post()) {
    }
    to_send = next_send(0);
    to_handle = next_receive(0);
  }
  [[nodiscard]] std::size_t next_receive(std::size_t at) const {
    while (at < plan.tasks.size() && plan.tasks[at].from < 0) ++at;
    return at;
  }
  [[nodiscard]] std::size_t next_send(std::size_t at) const {
    while (at < plan.tasks.size() && plan.tasks[at].give == Give::nothing) ++at;
    return at;
  }
  bool post() {
    to_post = next_receive(to_post);
    if (free_receives == 0 || to_post == plan.tasks.size()) return false;
    --free_receives;
    posted.push_back(to_post++);
    return true;
  }
  [[nodiscard]] bool is_done() const {
    return to_send == plan.tasks.size() && to_handle == plan.tasks.size();
  }

  struct Send {
    std::size_t under_way = 0;
    bool holds_receive = false;
  };
  ExchangePlan plan;
  std::size_t free_receives;
  std::vector<Send> sends;
  std::vector<Content> values;
  std::vector<int> encodes;  // by segment, with the codec
  std::size_t to_post = 0, to_send = 0, to_handle = 0;
  std::deque<std::size_t> posted;
  std::map<std::size_t, Message> arrived;  // by task
};

class World {
 public:
  World(const std::function<ExchangePlan(std::size_t)>& make, std::size_t ranks,
        std::size_t window) {
    for (std::size_t r = 0; r < ranks; ++r) {
      ranks_.emplace_back(make(r), static_cast<int>(r), window);
    }
    links_.resize(ranks * ranks);
  }

  // Until nothing moves any more; true if all have come to their ends.
  bool run() {
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        while (transfer(r) || send_own(r) || handle(r)) has_moved = true;
      }
    }
    bool is_done = true;
    for (const Rank& rank : ranks_) is_done = is_done && rank.is_done();
    for (const auto& link : links_) is_done = is_done && link.empty();
    return is_done;
  }

  std::vector<Rank>& ranks() { return ranks_; }

 private:
  std::deque<Message>& link(std::size_t from, std::size_t to) {
    return links_[from * ranks_.size() + to];
  }
  // A message moves when its receive is posted, and not before.
  bool transfer(std::size_t r) {
    Rank& rank = ranks_[r];
    for (auto at = rank.posted.begin(); at != rank.posted.end(); ++at) {
      const auto from = static_cast<std::size_t>(rank.plan.tasks[*at].from);
      auto& messages = link(from, r);
      if (messages.empty()) continue;
      const Message message = messages.front();
      messages.pop_front();
      Rank::Send& send = ranks_[from].sends[message.sender_slot];
      if (--send.under_way == 0 && send.holds_receive) {
        ++ranks_[from].free_receives;
        send.holds_receive = false;
        ranks_[from].post();
      }
      rank.arrived[*at] = message;
      rank.posted.erase(at);
      return true;
    }
    return false;
  }
  static std::size_t free_slot(const Rank& rank) {
    std::size_t slot = 0;
    while (slot < rank.sends.size() && rank.sends[slot].under_way > 0) ++slot;
    return slot;
  }
  bool send_own(std::size_t r) {
    Rank& rank = ranks_[r];
    if (rank.to_send == rank.plan.tasks.size()) return false;
    const PlanTask& task = rank.plan.tasks[rank.to_send];
    const std::size_t slot = free_slot(rank);
    if (task.from >= 0 || slot == rank.sends.size()) return false;
    give(r, task, slot, {});
    return true;
  }
  bool handle(std::size_t r) {
    Rank& rank = ranks_[r];
    const auto found = rank.arrived.find(rank.to_handle);
    if (found == rank.arrived.end()) return false;
    const PlanTask& task = rank.plan.tasks[rank.to_handle];
    const std::size_t slot = free_slot(rank);
    const bool leads_on = task.give != Give::nothing;
    if (leads_on && (slot == rank.sends.size() || rank.to_send != rank.to_handle)) return false;
    const Message message = found->second;
    rank.arrived.erase(found);
    EXPECT_EQ(message.segment, task.segment);
    EXPECT_EQ(message.is_total, task.take == Take::total);
    EXPECT_EQ(message.is_exact, task.takes_exact);
    Content& mine = rank.values[task.segment];
    if (task.take == Take::total) {
      mine = message.content;
    } else {
      EXPECT_EQ(mine.ranks & message.content.ranks, 0u) << "added twice";
      EXPECT_EQ(mine.total_of, -1) << "added to a total";
      mine.ranks |= message.content.ranks;
      mine.hops = std::max(mine.hops, message.content.hops);
    }
    rank.to_handle = rank.next_receive(rank.to_handle + 1);
    if (leads_on) give(r, task, slot, message);
    if (task.give != Give::message) ++rank.free_receives;
    rank.post();
    return true;
  }
  void give(std::size_t r, const PlanTask& task, std::size_t slot, Message message) {
    Rank& rank = ranks_[r];
    Content& mine = rank.values[task.segment];
    if (task.give != Give::message) {
      rank.encodes[task.segment] += task.gives_exact ? 0 : 1;
      if (task.give == Give::total) mine.total_of = static_cast<int>(r);
      message = {task.segment, task.give == Give::total, task.gives_exact, mine, slot};
    }
    ++message.content.hops;
    message.sender_slot = slot;
    rank.sends[slot] = {task.target_count, task.give == Give::message};
    ASSERT_GT(task.target_count, 0u);
    for (const int to : rank.plan.targets_of(task)) {
      ASSERT_NE(to, static_cast<int>(r));
      link(r, static_cast<std::size_t>(to)).push_back(message);
    }
    rank.to_send = rank.next_send(rank.to_send + 1);
  }

  std::vector<Rank> ranks_;
  std::vector<std::deque<Message>> links_;
};

// Ranks on hosts, in several ways: by `pattern` all apart, all together, neighbours, in turn, at
// random.
std::vector<int> hosts_of(std::size_t ranks, std::size_t pattern) {
  std::vector<int> hosts;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t host[] = {r, 0, r / 3, r % 3, r * r % 5};
    hosts.push_back(static_cast<int>(host[pattern]));
  }
  return hosts;
}
constexpr std::size_t kHostPatterns = 5;

void check(const char* name, const ExchangeShape& shape, std::size_t window,
           const std::function<ExchangePlan(std::size_t)>& make) {
  SCOPED_TRACE(testing::Message() << name << ": " << shape.elements << " floats, " << shape.ranks
                                  << " ranks, segments of " << shape.segment << ", window "
                                  << window);
  World world(make, shape.ranks, window);
  ASSERT_TRUE(world.run()) << "stuck";
  const std::uint64_t all =
      shape.ranks == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << shape.ranks) - 1;
  const Rank& first = world.ranks()[0];
  std::size_t covered = 0;
  for (const auto& segment : first.plan.segments) covered += segment.size;
  EXPECT_EQ(covered, shape.elements);
  if (shape.ranks == 1) return;
  for (const Rank& rank : world.ranks()) {
    for (std::size_t s = 0; s < first.plan.segments.size(); ++s) {
      if (first.plan.segments[s].size == 0) continue;
      EXPECT_EQ(rank.values[s].ranks, all);
      EXPECT_GE(rank.values[s].total_of, 0);
      EXPECT_EQ(rank.values[s].total_of, first.values[s].total_of);
      EXPECT_LE(rank.encodes[s], 1);
    }
  }
}

TEST(ExchangePlan, EveryTopologyDeliversEveryTotalOnce) {
  for (std::size_t p = 1; p <= 32; ++p) {
    for (const std::size_t n : {std::size_t{1}, p, 3 * p + 1, 70 * p + 3}) {
      for (const std::size_t window : {std::size_t{1}, std::size_t{4}}) {
        const ExchangeShape shape = {n, p, 8};
        ExchangeShape turned = shape;
        turned.turn = n % 5 + p;
        check("ring", shape, window,
              [&](std::size_t r) { return ring_plan(shape, {}, r, window); });
        check("direct", shape, window,
              [&](std::size_t r) { return direct_plan(shape, {}, r, window); });
        check("direct, turned", turned, window,
              [&](std::size_t r) { return direct_plan(turned, {}, r, window); });
        std::vector<std::uint32_t> weights;
        for (std::size_t r = 0; r < p; ++r) {
          const bool owns_nothing = r % 3 == n % 3 && p > 2;
          weights.push_back(owns_nothing ? 0u : static_cast<std::uint32_t>(1 + 7 * (r % 5)));
        }
        ExchangeShape weighted = turned;
        weighted.owner_weights = weights;
        check("direct, weighted", weighted, window,
              [&](std::size_t r) { return direct_plan(weighted, {}, r, window); });
        check("grid", shape, window,
              [&](std::size_t r) { return grid_plan(shape, {}, r, window); });
        check("grid, turned", turned, window,
              [&](std::size_t r) { return grid_plan(turned, {}, r, window); });
        check("tree", shape, window,
              [&](std::size_t r) { return tree_plan(shape, {}, r, window); });
        check("ps", shape, window,
              [&](std::size_t r) { return parameter_server_plan(shape, {}, r, 4); });
        for (std::size_t pattern = 0; pattern < kHostPatterns; ++pattern) {
          const auto hosts = hosts_of(p, pattern);
          check("hierarchical", shape, window,
                [&](std::size_t r) { return hierarchical_plan(shape, hosts, r, window); });
        }
      }
    }
  }
}

TEST(ExchangePlan, OwnersOfDirectTakeTurns) {
  for (const std::size_t turn : {0, 1, 7}) {
    const ExchangeShape shape = {.elements = 203, .ranks = 5, .segment = 16, .turn = turn};
    for (std::size_t rank = 0; rank < shape.ranks; ++rank) {
      for (const PlanTask& task : direct_plan(shape, {}, rank, 4).tasks) {
        const std::size_t chunk = task.segment / shape.segments();
        EXPECT_EQ(task.give == PlanTask::Give::total,
                  task.give != PlanTask::Give::nothing && (chunk + turn) % shape.ranks == rank);
      }
    }
  }
}

// On direct, as on a ring, each message's place in the lists of sends is a round in which every
// rank sends to another one: no port gets the flows of several ranks at once, however many ranks
// there are.
TEST(ExchangePlan, InEachRoundOfDirectEveryRankSendsToAnotherOne) {
  for (const std::size_t p : {std::size_t{2}, std::size_t{5}, std::size_t{16}}) {
    const ExchangeShape shape = {p * 70, p, 8};  // all chunks have the same number of segments
    std::vector<std::vector<int>> targets(p);    // by rank, in the order of its sends
    for (std::size_t r = 0; r < p; ++r) {
      const ExchangePlan plan = direct_plan(shape, {}, r, 4);
      for (const PlanTask& task : plan.tasks) {
        if (!task.gives()) continue;
        for (const int to : plan.targets_of(task)) targets[r].push_back(to);
      }
    }
    for (std::size_t round = 0; round < targets[0].size(); ++round) {
      std::vector<int> senders(p);
      for (std::size_t r = 0; r < p; ++r) {
        ASSERT_EQ(targets[r].size(), targets[0].size());
        ++senders[static_cast<std::size_t>(targets[r][round])];
        // Rank r sends to rank r + k for one k of the round.
        EXPECT_EQ((targets[r][round] + static_cast<int>(p - r)) % static_cast<int>(p),
                  targets[0][round]);
      }
      EXPECT_EQ(std::ranges::count(senders, 1), static_cast<std::ptrdiff_t>(p))
          << p << " " << round;
    }
  }
}

// On a ring and direct every rank encodes every value once: one residual is enough, and all of it
// is in use.
TEST(ExchangePlan, EveryRankEncodesEveryValueOnce) {
  const ExchangeShape shape = {1000, 7, 16};
  const ExchangeShape turned = {.elements = 1000, .ranks = 7, .segment = 16, .turn = 9};
  const std::function<ExchangePlan(std::size_t)> makes[] = {
      [&](std::size_t r) { return ring_plan(shape, {}, r, 4); },
      [&](std::size_t r) { return direct_plan(shape, {}, r, 4); },
      [&](std::size_t r) { return direct_plan(turned, {}, r, 4); },
      [&](std::size_t r) { return tree_plan(shape, {}, r, 4); },
      [&](std::size_t r) { return parameter_server_plan(shape, {}, r, 4); }};
  for (const auto& make : makes) {
    World world(make, shape.ranks, 4);
    ASSERT_TRUE(world.run());
    for (const Rank& rank : world.ranks()) {
      for (std::size_t s = 0; s < rank.encodes.size(); ++s) {
        EXPECT_EQ(rank.encodes[s], rank.plan.segments[s].size > 0 ? 1 : 0);
      }
    }
  }
}

// The chain's length is a property of the lists: nothing but what a message holds is looked at.
TEST(ExchangePlan, TheLongestChainOfMessagesIsWhatTheTopologySays) {
  const auto longest = [](std::size_t p, const std::function<ExchangePlan(std::size_t)>& make) {
    World world(make, p, 4);
    EXPECT_TRUE(world.run());
    std::size_t hops = 0;
    for (const Rank& rank : world.ranks()) {
      for (const Content& content : rank.values) hops = std::max(hops, content.hops);
    }
    return hops;
  };
  const auto said = [](const char* name, std::size_t p, const std::vector<int>& hosts) {
    return find_topology(name).hops(p, hosts);
  };
  for (std::size_t p = 1; p <= 32; ++p) {
    SCOPED_TRACE(testing::Message() << p << " ranks");
    const ExchangeShape shape = {20 * p, p, 8};
    EXPECT_EQ(said("ring", p, {}), longest(p, [&](auto r) { return ring_plan(shape, {}, r, 4); }));
    EXPECT_EQ(said("direct", p, {}),
              longest(p, [&](auto r) { return direct_plan(shape, {}, r, 4); }));
    EXPECT_EQ(said("grid", p, {}), longest(p, [&](auto r) { return grid_plan(shape, {}, r, 4); }));
    EXPECT_EQ(said("tree", p, {}), longest(p, [&](auto r) { return tree_plan(shape, {}, r, 4); }));
    EXPECT_EQ(said("ps", p, {}),
              longest(p, [&](auto r) { return parameter_server_plan(shape, {}, r, 4); }));
    for (std::size_t pattern = 0; pattern < kHostPatterns; ++pattern) {
      const auto hosts = hosts_of(p, pattern);
      EXPECT_EQ(said("hierarchical", p, hosts),
                longest(p, [&](auto r) { return hierarchical_plan(shape, hosts, r, 4); }))
          << "hosts by pattern " << pattern;
    }
    EXPECT_EQ(said("hierarchical", p, {}), said("ring", p, {})) << "one rank a host";
  }
  EXPECT_EQ(said("ring", 4, {}), 6u);
  EXPECT_EQ(said("direct", 4, {}), 2u);
  EXPECT_EQ(said("tree", 4, {}), 4u);
  EXPECT_EQ(said("ps", 4, {}), 2u);
  EXPECT_EQ(said("hierarchical", 4, {0, 0, 1, 1}), 4u);
}

// Counted in the lists: what each rank sends of a bucket to other hosts.
TEST(ExchangePlan, EveryRankSendsAsMuchOfABucketAsTheTopologySays) {
  const auto sent_by = [](const Topology& topology, std::size_t p, std::vector<int> hosts,
                          std::size_t rank, std::size_t turn = 0) {
    const bool is_each_alone = hosts.empty();
    for (std::size_t r = 0; is_each_alone && r < p; ++r) hosts.push_back(static_cast<int>(r));
    const ExchangeShape shape = {27720 * p, p, 64, turn};
    const ExchangePlan plan = topology.plan(shape, hosts, rank, 4);
    std::size_t sent = 0;
    for (const PlanTask& task : plan.tasks) {
      for (const int to : plan.targets_of(task)) {
        const bool counts = hosts[static_cast<std::size_t>(to)] != hosts[rank];
        if (task.gives() && counts) sent += plan.segments[task.segment].size;
      }
    }
    return static_cast<double>(sent) / static_cast<double>(shape.elements);
  };
  for (std::size_t p = 1; p <= 12; ++p) {
    for (std::size_t rank = 0; rank < p; ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << p);
      for (const Topology& topology : topology_list()) {
        // Owners of a grid take turns, in which they send more than others.
        std::size_t columns = 1, turns = 1;
        while (columns * columns < p) ++columns;
        if (topology.name == "grid") turns = p / columns;
        double sent = 0;
        for (std::size_t turn = 0; turn < turns; ++turn) {
          sent += sent_by(topology, p, {}, rank, turn) / static_cast<double>(turns);
        }
        EXPECT_NEAR(topology.wire_factor(p, {}, rank), sent, 1e-12) << topology.name;
      }
      for (std::size_t pattern = 0; pattern < kHostPatterns; ++pattern) {
        const auto hosts = hosts_of(p, pattern);
        const Topology& topology = find_topology("hierarchical");
        EXPECT_NEAR(topology.wire_factor(p, hosts, rank), sent_by(topology, p, hosts, rank), 1e-12)
            << "hosts by pattern " << pattern;
      }
    }
  }
  EXPECT_EQ(find_topology("direct").wire_factor(4, {}, 1), 1.5);
  EXPECT_EQ(find_topology("ps").wire_factor(4, {}, 0), 3.0);
  EXPECT_EQ(find_topology("ps").wire_factor(4, {}, 3), 1.0);
  EXPECT_EQ(find_topology("tree").wire_factor(5, {}, 0), 3.0);
}

// The world does see a list that gets stuck: two ranks that both receive before they send.
TEST(ExchangePlan, AListThatGetsStuckIsNoticed) {
  const auto stuck = [](std::size_t r) {
    ExchangePlan plan({2, 2, 1});
    const int other = 1 - static_cast<int>(r);
    plan.add(r, 0, {.from = other, .take = Take::partial, .give = Give::total}, {other});
    plan.add(1 - r, 0, {.give = Give::partial}, {other});
    return plan;
  };
  World world(stuck, 2, 4);
  EXPECT_FALSE(world.run());
}

}  // namespace
}  // namespace dp
