// The order in which buckets are posted, started and told of, and their sets of buffers, with
// exchanges that do what the test says.
#include "comm/reducer/bucket_pipeline.hpp"

#include <gtest/gtest.h>

#include "tests/comm/exchange/fake_exchange.hpp"

namespace dp {
namespace {

using testing_support::FakeExchange;

struct Bench {
  explicit Bench(std::size_t buckets, std::size_t in_flight)
      : pipeline(buckets, in_flight, nullptr,
                 {.is_final = [this](std::size_t b) { return is_final[b]; },
                  .starts = [this](std::size_t b) { call("about to start", b); },
                  .delivered = [this](std::size_t b) { call("sum of", b); }}),
        is_final(buckets) {
    for (std::size_t b = 0; b < buckets; ++b) {
      auto exchange = std::make_unique<FakeExchange>();
      exchange->calls = &calls;
      exchange->number = b;
      exchange->ends = &ends;
      exchanges.push_back(exchange.get());
      pipeline.set_exchange(b, std::move(exchange));
    }
    pipeline.fit_buffers();
  }
  void call(const char* what, std::size_t b) {
    calls.push_back(std::string(what) + " " + std::to_string(b));
  }
  // What one look has called, and that it saw something move if it should have.
  std::vector<std::string> look(bool has_moved) {
    calls.clear();
    EXPECT_EQ(pipeline.look(), has_moved);
    return calls;
  }
  // The buckets that are told of now.
  std::vector<std::size_t> delivered() {
    std::vector<std::size_t> told;
    while (const auto b = pipeline.next_delivered()) told.push_back(*b);
    return told;
  }

  using Calls = std::vector<std::string>;
  using Told = std::vector<std::size_t>;
  BucketPipeline pipeline;
  std::vector<bool> is_final;
  std::vector<FakeExchange*> exchanges;
  std::vector<std::string> calls;
  int ends = 0;
};

TEST(BucketPipeline, PostsAheadAndStartsInOrder) {
  Bench bench(4, 2);
  EXPECT_TRUE(bench.pipeline.is_over());
  bench.pipeline.begin_step(7);
  EXPECT_FALSE(bench.pipeline.is_over());
  bench.is_final[1] = true;  // before bucket 0: has to wait
  EXPECT_EQ(bench.look(false), (Bench::Calls{"post 0", "post 1"}));
  EXPECT_EQ(bench.exchanges[1]->step, 7u);
  EXPECT_NE(bench.exchanges[0]->memory, bench.exchanges[1]->memory);
  EXPECT_FALSE(bench.pipeline.can_start());
  EXPECT_FALSE(bench.pipeline.is_in_flight());
  bench.is_final[0] = true;
  EXPECT_TRUE(bench.pipeline.can_start());
  EXPECT_EQ(bench.look(true), (Bench::Calls{"prepare 0", "about to start 0", "start 0", "prepare 1",
                                            "about to start 1", "start 1"}));
  EXPECT_EQ(bench.pipeline.started(), 2u);
  EXPECT_TRUE(bench.pipeline.is_in_flight());
  // The others are final, but there is no set of buffers for them.
  bench.is_final[2] = bench.is_final[3] = true;
  EXPECT_FALSE(bench.pipeline.can_start());
  EXPECT_EQ(bench.look(false), Bench::Calls{});
  bench.exchanges[1]->moves = true;
  EXPECT_EQ(bench.look(true), Bench::Calls{});
}

TEST(BucketPipeline, GivesTheBuffersOfABucketThatIsDoneToTheNext) {
  Bench bench(3, 2);
  bench.is_final.assign(3, true);
  bench.pipeline.begin_step(0);
  (void)bench.look(true);
  const std::byte* const freed = bench.exchanges[1]->memory;
  // The second is done before the first.
  bench.exchanges[1]->has_delivered = bench.exchanges[1]->is_done = true;
  EXPECT_EQ(bench.look(false), Bench::Calls{"sum of 1"});
  EXPECT_EQ(bench.pipeline.first_open(), 0u);
  EXPECT_EQ(bench.look(true), (Bench::Calls{"post 2", "prepare 2", "about to start 2", "start 2"}));
  EXPECT_EQ(bench.exchanges[2]->memory, freed);
  EXPECT_TRUE(bench.delivered().empty());  // the first one's sum is missing
  bench.exchanges[0]->has_delivered = true;
  EXPECT_EQ(bench.look(false), Bench::Calls{"sum of 0"});
  EXPECT_EQ(bench.look(false), Bench::Calls{});  // told once
  EXPECT_EQ(bench.delivered(), (Bench::Told{0, 1}));
  bench.exchanges[2]->has_delivered = true;
  EXPECT_EQ(bench.look(false), Bench::Calls{"sum of 2"});
  EXPECT_EQ(bench.delivered(), Bench::Told{2});
  EXPECT_TRUE(bench.pipeline.has_delivered_all());
  EXPECT_FALSE(bench.pipeline.is_over());  // transfers go on
  bench.exchanges[0]->is_done = true;
  (void)bench.look(true);
  EXPECT_EQ(bench.pipeline.first_open(), 2u);
  bench.exchanges[2]->is_done = true;
  (void)bench.look(true);
  EXPECT_TRUE(bench.pipeline.is_over());
  EXPECT_FALSE(bench.pipeline.is_in_flight());
  // The next step begins anew, with both sets free.
  bench.pipeline.begin_step(1);
  EXPECT_EQ(bench.delivered(), Bench::Told{});
  bench.is_final.assign(3, false);
  EXPECT_EQ(bench.look(false), (Bench::Calls{"post 0", "post 1"}));
  EXPECT_EQ(bench.exchanges[0]->step, 1u);
  bench.is_final.assign(3, true);
  for (std::size_t b = 0; b < 3; ++b) {
    (void)bench.pipeline.look();
    bench.exchanges[b]->has_delivered = bench.exchanges[b]->is_done = true;
    (void)bench.pipeline.look();
  }
  EXPECT_EQ(bench.delivered(), (Bench::Told{0, 1, 2}));
  EXPECT_TRUE(bench.pipeline.is_over());
}

TEST(BucketPipeline, HoldsNothingUpWithoutBuckets) {
  Bench bench(0, 3);
  bench.pipeline.begin_step(0);
  EXPECT_TRUE(bench.pipeline.has_delivered_all());
  EXPECT_TRUE(bench.pipeline.is_over());
  (void)bench.look(false);
}

TEST(BucketPipeline, BuffersGrowWithAnExchangeThatNeedsMore) {
  Bench bench(2, 1);
  auto larger = std::make_unique<FakeExchange>();
  larger->buffers = {.count = 2, .bytes = 100'000};
  FakeExchange* const exchange = larger.get();
  bench.pipeline.set_exchange(0, std::move(larger));
  bench.pipeline.fit_buffers();
  bench.is_final.assign(2, true);
  bench.pipeline.begin_step(0);
  (void)bench.look(true);
  EXPECT_GE(exchange->memory_bytes, 100'000u);
  // Under a sanitizer a set that is too small fails here.
  std::fill_n(exchange->memory, 200'000, std::byte{1});
  exchange->has_delivered = exchange->is_done = true;
  (void)bench.look(true);
  // The other one has the same set.
  (void)bench.look(true);
  EXPECT_EQ(bench.exchanges[1]->memory, exchange->memory);
  bench.exchanges[1]->has_delivered = bench.exchanges[1]->is_done = true;
  (void)bench.look(true);
  EXPECT_TRUE(bench.pipeline.is_over());
}

// What transfers may still write to outlives a pipeline that ends in the middle of a step.
TEST(BucketPipeline, LeavesTransfersUnderWayTheirMemory) {
  int ends = 0;
  for (const bool is_in_step : {false, true}) {
    auto exchange = std::make_unique<FakeExchange>();
    FakeExchange* const still_there = exchange.get();
    exchange->ends = &ends;
    const std::byte* memory = nullptr;
    {
      BucketPipeline pipeline(1, 1, nullptr, {.is_final = [](std::size_t) { return false; }});
      pipeline.set_exchange(0, std::move(exchange));
      pipeline.fit_buffers();
      if (is_in_step) {
        pipeline.begin_step(0);
        EXPECT_FALSE(pipeline.look());
        memory = still_there->memory;
      }
    }
    EXPECT_EQ(ends, 1);  // that of the first round
    if (is_in_step) {
      EXPECT_EQ(still_there->memory, memory);
    }
  }
}

}  // namespace
}  // namespace dp
