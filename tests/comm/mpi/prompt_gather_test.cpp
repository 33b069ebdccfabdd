// Floats of all ranks, gathered in the middle of steps whose buckets are under way.
#include "comm/mpi/prompt_gather.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "comm/reducer/reducer.hpp"
#include "kernels/base/random.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kElements = 60'000;
const std::vector<TensorSlot> kTensors = {{0, 100, 300, false}, {30'000, 100, 300, false}};

std::vector<Bucket> two_buckets() {
  return plan_buckets(kTensors, {.bucket_bytes = 1000, .codec = parse_codec_spec("q8")});
}

float value_of(std::size_t rank, std::uint64_t number, std::size_t i) {
  return static_cast<float>(1000 * number + 100 * rank + i % 7) + 0.25f;
}

// As a layer does it: this rank's floats, and a check of what came.
void gather_once(GatherDesk& desk, std::size_t rank, std::uint64_t number, std::size_t floats) {
  std::vector<float> mine(floats), all(floats * desk.ranks(), -1.0f);
  for (std::size_t i = 0; i < floats; ++i) mine[i] = value_of(rank, number, i);
  desk.gather(number % 2 == 0 ? Pass::forward : Pass::backward, mine, all);
  for (std::size_t r = 0; r < desk.ranks(); ++r) {
    for (std::size_t i = 0; i < floats; ++i) {
      ASSERT_EQ(all[r * floats + i], value_of(r, number, i)) << "rank " << r << ", " << i;
    }
  }
}

// Sizes from one float to the largest, ranks that come late, every topology, and a slow link: all
// ranks get all floats, and the sums of the buckets are those of a step without gatherings.
TEST(PromptGather, BringsEveryRanksFloatsInEveryTopology) {
  Communicator comm;
  const auto rank = static_cast<std::size_t>(comm.rank());
  const auto ranks = static_cast<std::size_t>(comm.size());
  constexpr std::size_t kSizes[] = {1, 33, 4001, 2, 1025};
  for (const Topology& topology : topology_list()) {
    for (const double throttle : {0.0, 40e6}) {
      if (throttle > 0 && topology.name != "ring") continue;
      std::vector<std::vector<float>> sums;
      for (const bool gathers : {false, true}) {
        GatherDesk desk(ranks);
        for (const std::size_t floats : kSizes) desk.reserve(floats);
        std::vector<float> gradient(kElements);
        Reducer reducer(comm, gradient, two_buckets(),
                        {.topology = std::string(topology.name),
                         .segment_bytes = 8192,
                         .throttle_bits_per_s = throttle,
                         .desk = gathers && ranks > 1 ? &desk : nullptr});
        const CounterRng rng(3, RandomStream::test, rank);
        std::uint64_t number = 0;
        for (std::uint64_t step = 0; step < 4; ++step) {
          reducer.begin_step(step);
          for (std::size_t i = 0; i < kElements; ++i) {
            gradient[i] = static_cast<float>((i * 7 + step + rank) % 19) - 9.0f;
          }
          for (std::size_t b = 0; b < 2; ++b) {
            for (const std::size_t floats : kSizes) {
              if (!gathers || ranks == 1) break;
              if (rng.below(6, number) == 0) std::this_thread::sleep_for(1ms);
              gather_once(desk, rank, number++, floats);
            }
            reducer.bucket_ready(b);
          }
          EXPECT_TRUE(reducer.wait_step().finite);
        }
        sums.push_back(gradient);
        const CommCost cost = reducer.take_times().total;
        EXPECT_EQ(cost.gathered.gatherings, number);
        std::uint64_t bytes = 0;
        for (const std::size_t floats : kSizes) bytes += 20 + 4 * floats;
        EXPECT_EQ(cost.gathered.sent_bytes, number / std::size(kSizes) * bytes * (ranks - 1));
        EXPECT_GE(cost.comm_s, 0.0);
        const GatherDesk::Waits waits = desk.take_waits();
        EXPECT_EQ(waits.forward_s > 0 && waits.backward_s > 0, number > 0);
      }
      EXPECT_EQ(sums[0], sums[1]) << topology.name;
    }
  }
}

// A bucket of hundreds of segments, which a slow link carries in ten seconds, is under way when a
// layer gathers: the few segments that MPI has already are in front of that, and not the others.
// The step is given up then.
TEST(PromptGather, ComesBeforeTheRestOfABucket) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  const auto rank = static_cast<std::size_t>(comm.rank());
  GatherDesk desk(static_cast<std::size_t>(comm.size()));
  desk.reserve(100);
  std::vector<float> gradient(kElements, 1.0f);
  std::atomic<bool> is_delivered = false;
  Reducer reducer(comm, gradient, plan_buckets(std::vector<TensorSlot>{{0, 100, 600, false}}, {}),
                  {.segment_bytes = 1024,
                   .window = 1,
                   .throttle_bits_per_s = 2e5,
                   .on_delivered = [&](std::size_t) { is_delivered = true; },
                   .desk = &desk});
  reducer.begin_step(0);
  reducer.bucket_ready(0);
  std::this_thread::sleep_for(5ms);  // so that segments are under way
  for (std::uint64_t number = 0; number < 2; ++number) gather_once(desk, rank, number, 100);
  EXPECT_FALSE(is_delivered);
}

std::string thrown_by(GatherDesk& desk) {
  std::vector<float> mine(1), all(desk.ranks());
  try {
    desk.gather(Pass::forward, mine, all);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

// Who waits at a desk that closes gets the reason, and so does who comes later.
TEST(PromptGather, DeskThatClosesLetsNobodyWait) {
  GatherDesk desk(2);
  EXPECT_EQ(thrown_by(desk), "the exchange between ranks has ended");
  std::atomic<bool> is_awake = false;
  desk.open([&] { is_awake = true; });
  std::string said;
  std::thread layer([&] { said = thrown_by(desk); });
  while (!is_awake || !desk.has_request()) std::this_thread::yield();
  desk.close(std::make_exception_ptr(Error(ErrorKind::communication, "rank 1 is silent")));
  layer.join();
  EXPECT_EQ(said, "rank 1 is silent");
  EXPECT_EQ(thrown_by(desk), "rank 1 is silent");
}

// A rank whose reducer goes while a layer waits for the others: the layer goes on with an error.
TEST(PromptGather, ReducerThatEndsLetsNobodyWait) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  GatherDesk desk(static_cast<std::size_t>(comm.size()));
  desk.reserve(1);
  std::vector<float> gradient(kElements, 1.0f);
  std::string said = "nothing";
  std::thread layer;
  {
    Reducer reducer(comm, gradient, two_buckets(), {.desk = &desk});
    reducer.begin_step(0);
    if (comm.rank() == 0) {
      layer = std::thread([&] { said = thrown_by(desk); });
      while (!desk.has_request()) std::this_thread::yield();
    }
  }
  if (layer.joinable()) layer.join();
  EXPECT_EQ(said, comm.rank() == 0 ? "the exchange between ranks has ended" : "nothing");
}

}  // namespace
}  // namespace dp
