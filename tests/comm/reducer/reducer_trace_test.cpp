// What the reducer's thread tells a trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "comm/reducer/reducer.hpp"
#include "tests/comm/reducer/late_rank.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

using testing_support::LateRank;

constexpr std::uint64_t kFirstStep = 2, kSteps = 3;

const std::vector<TensorSlot> kTensors = {
    {0, 100, 300, false}, {30'000, 100, 600, false}, {90'000, 10'000, 1, true}};

// Five steps, of which three are recorded.
std::vector<TraceEvent> traced_run(Communicator& comm, ReducerOptions options,
                                   const std::string& codec) {
  TraceTrack track;
  track.reserve(100'000);
  track.set_window(kFirstStep, kSteps);
  options.trace = &track;
  options.segment_bytes = 4096;
  options.codec_threads = 2;
  std::vector<float> gradient(100'000, 1.0f);
  Reducer reducer(comm, gradient,
                  plan_buckets(kTensors, {.bucket_bytes = 1000, .codec = parse_codec_spec(codec)}),
                  options);
  for (std::uint64_t step = 0; step < kFirstStep + kSteps + 1; ++step) {
    reducer.begin_step(step);
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    (void)reducer.wait_step();
  }
  return reducer.run([&](Communicator&) {
    EXPECT_EQ(track.left_out(), 0u);
    return std::vector<TraceEvent>(track.events().begin(), track.events().end());
  });
}

std::size_t count(const std::vector<TraceEvent>& events, TraceKind kind) {
  return static_cast<std::size_t>(
      std::ranges::count_if(events, [&](const TraceEvent& e) { return e.kind == kind; }));
}

// In every topology each rank encodes a segment once, or the owner of its sum and all others once
// in sum; it is added P - 1 times, and its sum decoded by all P.
TEST(ReducerTrace, HasEveryCodecCallOfEveryTopology) {
  Communicator comm;
  const std::int64_t ranks = comm.size();
  for (const Topology& topology : topology_list()) {
    // Every rank a host, so that hierarchical encodes, too.
    std::vector<int> hosts;
    for (int r = 0; r < ranks; ++r) hosts.push_back(r);
    const auto events =
        traced_run(comm, {.topology = std::string(topology.name), .hosts = hosts}, "q8:block=64");
    std::int64_t encodes = 0, partials = 0, totals = 0;
    std::map<std::pair<std::uint32_t, std::uint32_t>, int> buckets;
    for (const TraceEvent& event : events) {
      EXPECT_TRUE(event.step >= kFirstStep && event.step < kFirstStep + kSteps) << event.step;
      EXPECT_LE(event.begin_ns, event.end_ns);
      if (event.kind == TraceKind::bucket) {
        ++buckets[{event.step, event.id}];
        EXPECT_EQ(event.bytes > 0, ranks > 1);
      }
      // Buckets sent as fp32 do not decode the sum that they have.
      if (event.id != 0) continue;
      if (event.kind == TraceKind::encode) ++encodes;
      if (event.kind == TraceKind::decode) ++(event.is_total ? totals : partials);
      if (event.kind == TraceKind::encode || event.kind == TraceKind::decode) {
        EXPECT_GT(event.bytes, 0u);
      }
    }
    // The first bucket: 30,000 values; every chunk is cut into segments of 1,024.
    const bool is_chunked = topology.name != "tree" && topology.name != "ps";
    const ExchangeShape shape = {30'000, is_chunked ? static_cast<std::size_t>(ranks) : 1, 1024};
    std::int64_t segments = 0;
    for (std::size_t c = 0; c < shape.ranks; ++c) {
      for (std::size_t at = 0; at < shape.segments(); ++at) {
        segments += shape.segment_size(c, at) > 0 ? 1 : 0;
      }
    }
    const auto per_step = static_cast<std::int64_t>(kSteps) * (ranks > 1 ? segments : 0);
    EXPECT_EQ(comm.all_sum(encodes), ranks * per_step) << topology.name;
    EXPECT_EQ(comm.all_sum(partials), (ranks - 1) * per_step) << topology.name;
    EXPECT_EQ(comm.all_sum(totals), ranks * per_step) << topology.name;
    EXPECT_EQ(buckets.size(), 3 * kSteps);
    for (const auto& [key, times] : buckets) EXPECT_EQ(times, 1) << key.first << ' ' << key.second;
  }
}

TEST(ReducerTrace, SlicesOfTheThreadFollowEachOther) {
  Communicator comm;
  for (const std::string codec : {"q8:block=64", "powersgd:rank=2"}) {
    auto events = traced_run(comm, {}, codec);
    std::erase_if(events, [](const TraceEvent& e) { return e.kind == TraceKind::bucket; });
    std::ranges::sort(events, {}, &TraceEvent::begin_ns);
    for (std::size_t i = 1; i < events.size(); ++i) {
      EXPECT_GE(events[i].begin_ns, events[i - 1].end_ns) << codec << ", slice " << i;
    }
    if (codec == "q8:block=64" || comm.size() == 1) continue;
    // Two matrices, three passes.
    for (const TraceKind pass :
         {TraceKind::p_factor, TraceKind::q_factor, TraceKind::p_q_product}) {
      EXPECT_EQ(count(events, pass), 2 * kSteps);
    }
  }
}

// A rank that begins late is waited for as a peer, and not as the network: as in the times.
TEST(ReducerTrace, TellsWaitingForARankFromWaitingForTheNetwork) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  TraceTrack track;
  track.reserve(10'000);
  track.set_window(0, 1);
  std::vector<float> gradient(1000, 1.0f);
  LateRank late(0);
  Reducer reducer(comm, gradient, plan_buckets(std::vector<TensorSlot>{{0, 10, 100, false}}, {}),
                  {.trace = &track, .on_look = [&] { late.look(); }});
  reducer.begin_step(0);
  late.start(comm, [&] { reducer.bucket_ready(0); });
  (void)reducer.wait_step();
  const double counted_s = reducer.take_times().total.peer_wait_s;
  double waited_s = 0;
  for (const TraceEvent& event : track.events()) {
    if (event.kind != TraceKind::peer_wait) continue;
    waited_s += static_cast<double>(event.end_ns - event.begin_ns) * 1e-9;
  }
  const bool is_late = comm.rank() == 0;  // and waits for nobody
  EXPECT_EQ(waited_s > 0.0, !is_late);
  EXPECT_EQ(counted_s > 0.0, !is_late);
}

}  // namespace
}  // namespace dp
