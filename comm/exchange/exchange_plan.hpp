// The list of all messages that one rank sends and receives in the exchange of a bucket. It is
// computed once, before the first step.
//
// A topology is a rule that writes such a list for every rank (ring.cpp, direct.cpp, tree.cpp,
// parameter_server.cpp, hierarchical.cpp). One engine carries out all lists (segment_exchange.hpp).
// This is pure arithmetic, the same on all ranks; nothing here communicates or fails.
//
// A bucket is divided into *chunks* (one per rank, or a single one), a chunk into *segments*. Every
// message is one segment: a *partial* sum on its way to the rank that completes it, or the *total*.
// That rank encodes the total once; other ranks forward it unchanged.
//
// Lists are free of deadlocks under two conditions. First, all messages of all ranks can be put
// into one total order that agrees with the order of every rank's list. In it, each message comes
// before the messages that follow from it. Second, a rank's list has at most `window` sends between
// the receive of a message and the send of the message that follows from it. Proof: suppose that
// messages are stuck, and take the first of them in that order. All messages before it have been
// handled. Hence the sender of the first stuck message has a free slot. The receiver has posted the
// receive, because this message is the next one on the receiver's list. The message that follows
// from it can be sent, too: at most `window` sends lie between the two. If fewer than `window`
// sends are under way, a slot is free. Otherwise a receive is waiting for each of these sends,
// since receivers keep `window` receives posted. So one of the sends ends, and its slot becomes
// free. (tests/comm/exchange/exchange_plan_test.cpp runs the lists of up to 32 ranks without MPI.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace dp {

// How a bucket of n floats is divided. It has `ranks` chunks: the first n mod ranks of them are one
// float longer, or the sizes follow from the owners' weights (direct). Each chunk is divided into
// segments of about `segment` floats. The segment length divides the longest chunk evenly, into the
// fewest segments that are at most a quarter longer than `segment`. For example, 67,000 floats are
// one segment: a second one would double the messages for little pipelining.
struct ExchangeShape {
  std::size_t elements = 0;
  std::size_t ranks = 1;
  std::size_t segment = 65536;  // as wanted; segment_length() may be a quarter more
  // Shifts the chunks' owners by this many ranks, for topologies in which each rank owns a chunk
  // (direct).
  std::size_t turn = 0;
  // Whether payloads are so short that a start notice would cost too much (direct).
  bool has_brief_messages = false;
  // The weight of each rank's part of the bucket, by rank. Empty: equal parts. The weights must
  // outlive the shape.
  std::span<const std::uint32_t> owner_weights = {};

  [[nodiscard]] std::size_t chunk_of(std::size_t owner) const {
    return (owner + ranks - turn % ranks) % ranks;
  }
  // The owner of a chunk, if each rank owns one.
  [[nodiscard]] std::size_t owner_of(std::size_t chunk) const { return (chunk + turn) % ranks; }
  [[nodiscard]] std::size_t chunk_begin(std::size_t chunk) const {
    if (owner_weights.empty()) return elements / ranks * chunk + std::min(chunk, elements % ranks);
    std::uint64_t before = 0, all = 0;
    for (std::size_t c = 0; c < ranks; ++c) {
      const std::uint64_t weight = owner_weights[owner_of(c)];
      if (c < chunk) before += weight;
      all += weight;
    }
    return static_cast<std::size_t>(elements * before / all);
  }
  [[nodiscard]] std::size_t chunk_size(std::size_t chunk) const {
    if (!owner_weights.empty()) return chunk_begin(chunk + 1) - chunk_begin(chunk);
    return elements / ranks + (chunk < elements % ranks ? 1 : 0);
  }
  [[nodiscard]] std::size_t longest_chunk() const {
    std::size_t longest = chunk_size(0);
    for (std::size_t c = 1; !owner_weights.empty() && c < ranks; ++c) {
      longest = std::max(longest, chunk_size(c));
    }
    return longest;
  }
  // The floats of a segment. The last segment of a chunk may be shorter.
  [[nodiscard]] std::size_t segment_length() const {
    const std::size_t longest = longest_chunk();
    const std::size_t most = segment + segment / 4;
    const std::size_t count = std::max<std::size_t>((longest + most - 1) / most, 1);
    return (longest + count - 1) / count;
  }
  // The number of segments of the longest chunk. A shorter chunk may have fewer.
  [[nodiscard]] std::size_t segments() const {
    const std::size_t length = std::max<std::size_t>(segment_length(), 1);
    return (longest_chunk() + length - 1) / length;
  }
  [[nodiscard]] std::size_t segment_begin(std::size_t chunk, std::size_t at) const {
    return chunk_begin(chunk) + at * segment_length();
  }
  // 0 if the chunk has no such segment.
  [[nodiscard]] std::size_t segment_size(std::size_t chunk, std::size_t at) const {
    const std::size_t length = segment_length();
    const std::size_t begin = std::min(at * length, chunk_size(chunk));
    return std::min(length, chunk_size(chunk) - begin);
  }
  // The same bucket as one chunk.
  [[nodiscard]] ExchangeShape whole() const { return {elements, 1, segment}; }
};

// One entry of a rank's list: the rank takes a message, sends one, or does both.
struct PlanTask {
  static constexpr int kNobody = -1;
  enum class Take : std::uint8_t { nothing, partial, total };  // adds a partial, assigns a total
  enum class Give : std::uint8_t {
    nothing,
    partial,  // encodes the sum so far
    total,    // encodes the complete sum and replaces it by what others will decode
    message   // forwards the received message as it is
  };

  int from = kNobody;  // the rank that the message comes from
  Take take = Take::nothing;
  Give give = Give::nothing;
  // Whether the sum so far consists of this rank's own values alone when the message arrives. If
  // so, these values count as zeros when they are not finite.
  bool holds_only_own_values = false;
  // Whether the received or the sent message is in fp32 instead of the codec's format.
  bool takes_exact = false, gives_exact = false;
  // ExchangePlan::add fills in the rest.
  std::uint32_t segment = 0;
  std::uint32_t first_target = 0, target_count = 0;

  [[nodiscard]] bool takes() const { return from != kNobody; }
  [[nodiscard]] bool gives() const { return give != Give::nothing; }
  [[nodiscard]] bool encodes() const { return give == Give::partial || give == Give::total; }
};

struct ExchangePlan {
  struct Segment {
    std::size_t begin = 0, size = 0;  // in the bucket
  };

  explicit ExchangePlan(const ExchangeShape& cut) : shape(cut) {
    segments.reserve(shape.ranks * shape.segments());
    for (std::size_t chunk = 0; chunk < shape.ranks; ++chunk) {
      for (std::size_t at = 0; at < shape.segments(); ++at) {
        segments.push_back({shape.segment_begin(chunk, at), shape.segment_size(chunk, at)});
      }
    }
  }

  // Appends a task for segment `at` of that chunk; its message goes to all targets. Does nothing if
  // the chunk has no such segment.
  void add(std::size_t chunk, std::size_t at, PlanTask task, std::span<const int> to = {}) {
    if (shape.segment_size(chunk, at) == 0) return;
    task.segment = static_cast<std::uint32_t>(chunk * shape.segments() + at);
    task.first_target = static_cast<std::uint32_t>(targets.size());
    task.target_count = static_cast<std::uint32_t>(to.size());
    targets.insert(targets.end(), to.begin(), to.end());
    tasks.push_back(task);
  }
  void add(std::size_t chunk, std::size_t at, const PlanTask& task, std::initializer_list<int> to) {
    add(chunk, at, task, std::span(to.begin(), to.size()));
  }

  [[nodiscard]] std::span<const int> targets_of(const PlanTask& task) const {
    return std::span(targets).subspan(task.first_target, task.target_count);
  }

  // All ranks with which this one exchanges messages, in increasing order. The relation is
  // symmetric.
  [[nodiscard]] std::vector<int> partners() const {
    std::vector<int> all(targets);
    for (const PlanTask& task : tasks) {
      if (task.takes()) all.push_back(task.from);
    }
    std::ranges::sort(all);
    const auto repeated = std::ranges::unique(all);
    all.erase(repeated.begin(), repeated.end());
    return all;
  }

  ExchangeShape shape;
  // The receivers of start notices: all other ranks, partners only, or nobody. Without notices, the
  // first message from a partner shows that the partner has started. `none` is allowed only if no
  // rank's exchange can end before all ranks have started theirs. The same on all ranks.
  enum class Notices : std::uint8_t { to_all, to_partners, none };
  Notices notices = Notices::to_all;
  std::vector<Segment> segments;
  std::vector<PlanTask> tasks;  // receives and sends happen in this order
  std::vector<int> targets;
};

}  // namespace dp
