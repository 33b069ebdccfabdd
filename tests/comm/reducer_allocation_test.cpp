// From the second step on the exchange allocates nothing (of ours: Open MPI's own uses malloc),
// traced or not.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "comm/reducer.hpp"

namespace {
std::atomic<long> allocations = 0;

void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, 16); }
void* operator new(std::size_t bytes, std::align_val_t a) {
  return counted(bytes, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace dp {
namespace {

// Every topology, with payloads of fixed and of varying length, and codecs that are exchanges.
TEST(ReducerAllocation, NothingFromTheSecondStepOn) {
  Communicator comm;
  std::vector<float> gradient(100'000, 1.0f);
  const std::vector<TensorSlot> tensors = {
      {0, 100, 300, false}, {30'000, 100, 600, false}, {90'000, 10'000, 1, true}};
  std::vector<std::string> codecs = {"q8:block=64", "topk:ratio=0.1"};
  for (const CodecInfo& info : codec_list()) {
    if (info.is_exchange) codecs.emplace_back(info.name);
  }
  for (const Topology& topology : topology_list()) {
    for (const std::string& codec : codecs) {
      TraceTrack track;
      track.reserve(10'000);
      track.set_window(3, 10);
      Reducer reducer(comm, gradient, plan_buckets(tensors, {.bucket_bytes = 1000, .codec = codec}),
                      {.topology = std::string(topology.name),
                       .segment_bytes = 4096,
                       .buckets_in_flight = 2,
                       .trace = &track});
      long after_first = 0;
      for (std::uint64_t step = 0; step < 20; ++step) {
        reducer.begin_step(step);
        for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
        (void)reducer.wait_step();
        if (step == 0) after_first = allocations;
      }
      EXPECT_EQ(allocations - after_first, 0) << topology.name << ", " << codec;
      EXPECT_GT(after_first, 0);
    }
  }
}

}  // namespace
}  // namespace dp
