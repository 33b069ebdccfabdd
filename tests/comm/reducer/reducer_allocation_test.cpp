// From the second step on the exchange allocates nothing (of ours: Open MPI's own uses malloc),
// traced and sampled or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "comm/reducer/reducer.hpp"

namespace {
std::atomic<long> allocations = 0;

void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

// Not inline: where the compiler sees one half of a pair as aligned_alloc() or free(), it warns of
// a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return counted(bytes, 16); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t a) {
  return counted(bytes, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace dp {
namespace {

// Every topology, with payloads of fixed and of varying length, and codecs that are exchanges; two
// hosts, so that the hierarchical one encodes; a slow link; DGC's momentum; and every third step
// compared with the exact sums.
TEST(ReducerAllocation, NothingFromTheSecondStepOn) {
  Communicator comm;
  std::vector<float> gradient(100'000, 1.0f);
  const std::vector<TensorSlot> tensors = {
      {0, 100, 300, false}, {30'000, 100, 600, false}, {90'000, 10'000, 1, true}};
  std::vector<int> hosts;
  for (int rank = 0; rank < comm.size(); ++rank) hosts.push_back(rank % 2);
  std::vector<std::string> codecs = {"q8:block=64", "topk:ratio=0.1", "dgc:ratio=0.1,clip=1"};
  for (const CodecInfo& info : codec_list()) {
    if (info.is_exchange) codecs.emplace_back(info.name);
  }
  for (const Topology& topology : topology_list()) {
    for (const std::string& codec : codecs) {
      SCOPED_TRACE(std::string(topology.name) + ", " + codec);
      std::fill(gradient.begin(), gradient.end(), 1.0f);
      TraceTrack track;
      track.reserve(10'000);
      track.set_window(3, 10);
      const auto buckets =
          plan_buckets(tensors, {.bucket_bytes = 1000, .codec = parse_codec_spec(codec)});
      ReducerOptions options{.topology = std::string(topology.name),
                             .hosts = hosts,
                             .segment_bytes = 4096,
                             .buckets_in_flight = 2,
                             .throttle_bits_per_s = topology.name == "ring" ? 1e10 : 0.0,
                             .trace = &track};
      Reducer reducer(comm, gradient, buckets, options);
      long after_first = 0;
      for (std::uint64_t step = 0; step < 8; ++step) {
        if (step % 3 == 0) reducer.sample_error();
        reducer.begin_step(step);
        for (std::size_t b = 0; b < buckets.size(); ++b) reducer.bucket_ready(b);
        (void)reducer.wait_step();
        // The comparison follows the step on the reducer's thread.
        reducer.run([](Communicator&) {});
        if (step == 0) after_first = allocations;
      }
      EXPECT_EQ(allocations - after_first, 0);
      EXPECT_GT(after_first, 0);
      const CommCost cost = reducer.take_times().total;
      EXPECT_GT(cost.sample_bytes, 0u);  // or nothing would be shown
      EXPECT_GT(cost.sampled.value_squares + cost.delivered_value_squares, 0.0);
    }
  }
}

}  // namespace
}  // namespace dp
