// Where the seconds of an exchange go, with a clock that the test moves and exchanges that do what
// it says. All times are whole numbers of 1/512 s, so that sums of them are exact.
#include "comm/reducer/exchange_meter.hpp"

#include <gtest/gtest.h>

#include <array>

#include "tests/comm/exchange/fake_exchange.hpp"

namespace dp {
namespace {

using testing_support::FakeExchange;

// Seconds, for numbers that a double and a nanosecond clock both hold.
constexpr double ticks(int n) { return n / 512.0; }

class Bench {
 public:
  explicit Bench(TraceTrack* trace = nullptr)
      : meter(make(exchanges_), trace, [this] { return now; }) {}

  void pass(int n) { now += std::chrono::nanoseconds(n * 1'953'125ll); }
  FakeExchange& exchange(std::size_t b) { return static_cast<FakeExchange&>(*exchanges_[b]); }
  // So many ticks in codecs, which take their time.
  void encode(std::size_t b, int n) {
    exchange(b).cost().encode_s += ticks(n);
    pass(n);
  }
  void decode(std::size_t b, int n) {
    exchange(b).cost().decode_s += ticks(n);
    pass(n);
  }

 private:
  static ExchangeMeter::Exchanges make(std::vector<std::unique_ptr<Exchange>>& exchanges) {
    for (int b = 0; b < 3; ++b) exchanges.push_back(std::make_unique<FakeExchange>());
    return exchanges;
  }
  std::vector<std::unique_ptr<Exchange>> exchanges_;

 public:
  ExchangeMeter::Clock::time_point now{std::chrono::seconds(1000)};
  ExchangeMeter meter;
};

TEST(ExchangeMeter, TimeInFlightBelongsToEveryBucketAndOnceToTheTotal) {
  Bench bench;
  bench.pass(100);  // nothing is in flight
  bench.meter.skip();
  bench.pass(8);  // bucket 0 alone
  bench.meter.account(0, 1);
  bench.pass(16);  // 0 and 1
  bench.meter.account(0, 2);
  bench.exchange(0).is_done = true;
  bench.pass(32);  // 1 and 2; 0 is done
  bench.meter.account(0, 3);
  bench.pass(100);
  bench.meter.skip();
  const CommTimes times = bench.meter.take();
  EXPECT_EQ(times.total.comm_s, ticks(56));
  EXPECT_EQ(times.buckets[0].comm_s, ticks(24));
  EXPECT_EQ(times.buckets[1].comm_s, ticks(48));
  EXPECT_EQ(times.buckets[2].comm_s, ticks(32));
  // Nothing else was done: all of it is the network's.
  EXPECT_EQ(times.total.wire_s, ticks(56));
  EXPECT_EQ(times.buckets[1].wire_s, ticks(48));
}

// What ranks exchange between steps.
TEST(ExchangeMeter, WithoutABucketTimeBelongsToTheTotal) {
  Bench bench;
  bench.pass(100);
  bench.meter.skip();
  bench.pass(8);
  bench.meter.account_gathering();
  bench.pass(100);
  bench.meter.skip();
  bench.pass(16);
  bench.meter.account_waiting();
  const CommTimes times = bench.meter.take();
  EXPECT_EQ(times.total.comm_s, ticks(24));
  EXPECT_EQ(times.total.peer_wait_s, ticks(16));
  EXPECT_EQ(times.total.wire_s, ticks(8));
  for (const CommCost& bucket : times.buckets) EXPECT_EQ(bucket.comm_s, 0.0);
}

TEST(ExchangeMeter, CodecsTimeIsNotWaiting) {
  Bench bench;
  bench.meter.skip();
  bench.exchange(0).waits = true;
  bench.encode(0, 4);
  bench.decode(1, 2);
  bench.pass(10);
  bench.meter.account(0, 2);
  const CommTimes times = bench.meter.take();
  EXPECT_EQ(times.total.comm_s, ticks(16));
  EXPECT_EQ(times.total.encode_s, ticks(4));
  EXPECT_EQ(times.total.decode_s, ticks(2));
  // The oldest bucket waits for a rank: what no codec had is a peer's.
  EXPECT_EQ(times.total.peer_wait_s, ticks(10));
  EXPECT_EQ(times.total.wire_s, 0.0);
  EXPECT_EQ(times.buckets[0].peer_wait_s, ticks(10));
  EXPECT_EQ(times.buckets[0].encode_s, ticks(4));
  EXPECT_EQ(times.buckets[0].wire_s, ticks(2));  // while the other's decoder ran
  EXPECT_EQ(times.buckets[1].peer_wait_s, 0.0);
  EXPECT_EQ(times.buckets[1].wire_s, ticks(14));
}

TEST(ExchangeMeter, OnlyTheOldestBucketMakesTheTotalWaitForAPeer) {
  Bench bench;
  bench.meter.skip();
  bench.exchange(1).waits = true;
  bench.pass(8);
  bench.meter.account(0, 2);  // the oldest is on the wire
  EXPECT_EQ(bench.meter.take().total.peer_wait_s, 0.0);
  // The oldest that is not done counts, and not the first of the range.
  bench.exchange(0).is_done = true;
  bench.pass(4);
  bench.meter.account(0, 2);
  const CommTimes times = bench.meter.take();
  EXPECT_EQ(times.total.peer_wait_s, ticks(4));
  EXPECT_EQ(times.buckets[1].peer_wait_s, ticks(4));
  EXPECT_EQ(times.buckets[0].comm_s, 0.0);
}

// A hook may run after the bucket's end; its time is encode_s, and in flight.
TEST(ExchangeMeter, HooksAreWorkAndKeepTheirBucketInFlight) {
  Bench bench;
  bench.meter.skip();
  bench.pass(2);
  bench.exchange(0).is_done = true;
  bench.meter.account(0, 1);
  EXPECT_EQ(bench.meter.take().buckets[0].comm_s, 0.0);  // was done by then
  bench.pass(8);
  bench.meter.add_hook(0, ticks(8));
  bench.meter.account(1, 1);
  bench.pass(4);
  bench.meter.add_hook(1, ticks(4));
  bench.meter.account(1, 2);  // this one is in flight anyway
  const CommTimes times = bench.meter.take();
  EXPECT_EQ(times.buckets[0].comm_s, ticks(8));
  EXPECT_EQ(times.buckets[0].encode_s, ticks(8));
  EXPECT_EQ(times.buckets[0].wire_s, 0.0);
  EXPECT_EQ(times.buckets[1].comm_s, ticks(4));
  EXPECT_EQ(times.buckets[1].encode_s, ticks(4));
  EXPECT_EQ(times.total.comm_s, ticks(12));
  EXPECT_EQ(times.total.encode_s, ticks(12));
  EXPECT_EQ(times.total.wire_s, 0.0);
}

// Clocks inside and outside of a codec are read at different times; no part becomes negative.
TEST(ExchangeMeter, NoPartIsNegative) {
  Bench bench;
  bench.meter.skip();
  bench.exchange(0).waits = true;
  bench.exchange(0).cost().encode_s += ticks(9);
  bench.pass(8);
  bench.meter.account(0, 1);
  const CommTimes times = bench.meter.take();
  EXPECT_EQ(times.total.peer_wait_s, 0.0);
  EXPECT_EQ(times.total.wire_s, 0.0);
  EXPECT_EQ(times.buckets[0].wire_s, 0.0);
}

TEST(ExchangeMeter, AddsUpBytesAndErrorsAndTakesThemOnce) {
  Bench bench;
  bench.exchange(0).cost().sent_bytes = 100;
  bench.exchange(0).cost().received_bytes = 30;
  ExchangeStats& cost = bench.exchange(2).cost();
  cost.sent_bytes = 7;
  cost.received_bytes = 5;
  cost.sampled.error_squares = 4.0;
  cost.sampled.value_squares = 16.0;
  bench.meter.add_error(1, {.error_squares = 9.0, .value_squares = 36.0, .sent_bytes = 11});
  bench.meter.add_error(1, {.error_squares = 0.0, .value_squares = 108.0, .sent_bytes = 11});
  const CommTimes times = bench.meter.take();
  EXPECT_EQ(times.total.sent_bytes, 107u);
  EXPECT_EQ(times.total.received_bytes, 35u);
  EXPECT_EQ(times.total.sample_bytes, 22u);
  EXPECT_EQ(times.buckets[0].sent_bytes, 100u);
  EXPECT_EQ(times.buckets[2].relative_error(), 0.5);
  EXPECT_EQ(times.total.relative_error(), 0.5);
  EXPECT_EQ(times.buckets[0].relative_error(), 0.0);
  EXPECT_EQ(times.buckets[1].delivered_relative_error(), 0.25);
  EXPECT_EQ(times.total.delivered_relative_error(), 0.25);

  const CommTimes nothing = bench.meter.take();
  EXPECT_EQ(nothing.total.sent_bytes, 0u);
  EXPECT_EQ(nothing.total.delivered_value_squares, 0.0);
  EXPECT_EQ(nothing.buckets[1].sample_bytes, 0u);
  // The codecs' time that was taken is not counted as seen: the next is new.
  bench.meter.skip();
  bench.exchange(0).waits = true;
  bench.encode(0, 3);
  bench.pass(1);
  bench.meter.account(0, 1);
  EXPECT_EQ(bench.meter.take().total.peer_wait_s, ticks(1));
}

// The trace: a slice of every bucket, and waits wherever no codec ran, of one kind with the times.
TEST(ExchangeMeter, TracesBucketsAndTheWaitsBetweenCodecs) {
  TraceTrack track;
  track.reserve(100);
  track.set_window(5, 1);
  Bench bench(&track);
  const auto at = [&] { return trace_ns(bench.now); };
  track.begin_step(5);
  bench.meter.skip();
  const std::int64_t begin = at();
  bench.exchange(0).cost().sent_bytes += 40;
  bench.meter.bucket_starts(0);
  bench.pass(4);
  bench.meter.account(0, 1);  // on the wire
  bench.pass(4);
  bench.meter.account(0, 1);  // still: one slice
  const std::int64_t encode_begin = at();
  bench.pass(2);
  track.add({.begin_ns = encode_begin, .end_ns = at(), .step = 5, .kind = TraceKind::encode});
  const std::int64_t encode_end = at();
  bench.exchange(0).cost().sent_bytes += 60;
  bench.exchange(0).waits = true;
  bench.pass(8);
  bench.meter.account(0, 1);
  const std::int64_t end = at();
  bench.meter.bucket_delivered(0);
  track.begin_step(6);  // outside of the window
  bench.pass(8);
  bench.meter.account(0, 1);

  const std::span<TraceEvent> events = track.events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].kind, TraceKind::wire_wait);
  EXPECT_EQ(events[0].begin_ns, begin);
  EXPECT_EQ(events[0].end_ns, encode_begin);
  EXPECT_EQ(events[1].kind, TraceKind::encode);
  EXPECT_EQ(events[2].kind, TraceKind::peer_wait);
  EXPECT_EQ(events[2].begin_ns, encode_end);
  EXPECT_EQ(events[2].end_ns, end);
  EXPECT_EQ(events[3].kind, TraceKind::bucket);
  EXPECT_EQ(events[3].begin_ns, begin);
  EXPECT_EQ(events[3].end_ns, end);
  EXPECT_EQ(events[3].bytes, 60u);  // since its start
}

}  // namespace
}  // namespace dp
