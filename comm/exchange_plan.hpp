// What one rank sends and receives in the exchange of a bucket, as a list that is made once.
//
// A topology is a rule that writes such a list for every rank (ring.cpp, direct.cpp, tree.cpp,
// parameter_server.cpp, hierarchical.cpp); one engine carries all of them out
// (segment_exchange.hpp). Pure arithmetic, the same on all ranks; nothing here talks or fails.
//
// A bucket is cut into *chunks* (one per rank, or a single one), a chunk into *segments*. Every
// message is one segment: a *partial* sum on its way to the rank that completes it, or the *total*,
// which the completing rank has encoded once and which travels on verbatim.
//
// A list without deadlock: let there be one order of all messages of all ranks in which every
// rank's receives come as in its list, its sends too, and a message before those that it leads to;
// and let a rank send at most `window` messages between a message and the one that it leads to.
// Take the first message in that order which is stuck. All before it have been handled: its sender
// has a free slot and its receiver, for which it is the next one, has posted it. What it leads to
// finds a slot, as those sent since then are fewer than `window` or have been posted by their
// receivers, who always have `window` receives posted.
// (tests/comm/exchange_plan_test.cpp runs the lists of up to 32 ranks without MPI.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace dp {

// How a bucket is cut: in `ranks` chunks, the first n mod ranks of them one float longer, and each
// of these in segments.
struct ExchangeShape {
  std::size_t elements = 0;
  std::size_t ranks = 1;
  std::size_t segment = 65536;

  [[nodiscard]] std::size_t chunk_begin(std::size_t chunk) const {
    return elements / ranks * chunk + std::min(chunk, elements % ranks);
  }
  [[nodiscard]] std::size_t chunk_size(std::size_t chunk) const {
    return elements / ranks + (chunk < elements % ranks ? 1 : 0);
  }
  // Of the longest chunk. In shorter ones the last may be missing.
  [[nodiscard]] std::size_t segments() const { return (chunk_size(0) + segment - 1) / segment; }
  [[nodiscard]] std::size_t segment_begin(std::size_t chunk, std::size_t at) const {
    return chunk_begin(chunk) + at * segment;
  }
  // 0 where the chunk has no such segment.
  [[nodiscard]] std::size_t segment_size(std::size_t chunk, std::size_t at) const {
    const std::size_t begin = std::min(at * segment, chunk_size(chunk));
    return std::min(segment, chunk_size(chunk) - begin);
  }
  // The same bucket as one chunk.
  [[nodiscard]] ExchangeShape whole() const { return {elements, 1, segment}; }
};

// One step of a rank's list: takes a message, or sends one, or both.
struct PlanTask {
  static constexpr int kNobody = -1;
  enum class Take : std::uint8_t { nothing, partial, total };  // adds a partial, assigns a total
  enum class Give : std::uint8_t {
    nothing,
    partial,  // encodes the sum so far
    total,    // encodes the complete sum and replaces it by what others will decode
    message   // sends the message received on as it is
  };

  int from = kNobody;  // the rank that the message comes from
  Take take = Take::nothing;
  Give give = Give::nothing;
  // What is added to is this rank's own alone: where that is not finite it counts as zeros.
  bool is_first_sum = false;
  // The message received, or sent, is fp32 and not the codec's.
  bool takes_exact = false, gives_exact = false;
  // The rest is filled in by ExchangePlan::add.
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

  // The next task, about segment `at` of that chunk; its message goes to all targets. Nothing where
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

  ExchangeShape shape;
  std::vector<Segment> segments;
  std::vector<PlanTask> tasks;  // receives are taken, and sends made, in this order
  std::vector<int> targets;
};

}  // namespace dp
