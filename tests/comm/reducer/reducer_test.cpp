// The reducer: steps with buckets that become ready in any order, verdicts, jobs between steps,
// times.
#include "comm/reducer/reducer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <thread>

#include "comm/exchange/message_header.hpp"
#include "comm/replica_hash.hpp"
#include "comm/topologies/ring.hpp"
#include "kernels/base/random.hpp"
#include "tests/comm/reducer/late_rank.hpp"
#include "tests/support/skipped.hpp"
#include "tests/support/state_list.hpp"

namespace dp {
namespace {

using namespace std::chrono_literals;
using testing_support::LateRank;

std::vector<Bucket> five_buckets(const std::string& codec) {
  const std::vector<TensorSlot> tensors = {
      {0, 10, 100, false},     {1000, 50, 50, false}, {3500, 1, 1, false}, {3501, 0, 5, false},
      {3501, 100, 100, false}, {13501, 1, 56, true},  {13557, 1, 8, true}};
  return plan_buckets(
      tensors, {.bucket_bytes = 1000, .codec = parse_codec_spec(codec), .min_compress_bytes = 100});
}
constexpr std::size_t kElements = 13565;

void fill(std::span<float> gradient, int rank, std::uint64_t step) {
  const CounterRng rng(step, RandomStream::test, static_cast<std::uint64_t>(rank));
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(static_cast<int>(rng.below(201, i)) - 100);
  }
}

float sum_of_fills(int ranks, std::uint64_t step, std::size_t i) {
  float sum = 0.0f;
  for (int rank = 0; rank < ranks; ++rank) {
    const CounterRng rng(step, RandomStream::test, static_cast<std::uint64_t>(rank));
    sum += static_cast<float>(static_cast<int>(rng.below(201, i)) - 100);
  }
  return sum;
}

// An order of the buckets that differs from rank to rank and step to step.
std::vector<std::size_t> shuffled(std::size_t n, std::uint64_t seed) {
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  const CounterRng rng(seed, RandomStream::test, 77);
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[rng.below(i, i)]);
  return order;
}

TEST(Reducer, SumsWhateverTheOrderOfReadiness) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  for (const std::size_t in_flight : {std::size_t{1}, std::size_t{2}, std::size_t{9}}) {
    Reducer reducer(comm, gradient, five_buckets("none"),
                    {.segment_bytes = 1024, .buckets_in_flight = in_flight});
    for (std::uint64_t step = 0; step < 10; ++step) {
      reducer.begin_step(step);
      fill(gradient, comm.rank(), step);
      const auto seed = step * 100 + static_cast<std::uint64_t>(comm.rank());
      for (const std::size_t b : shuffled(reducer.buckets().size(), seed)) reducer.bucket_ready(b);
      EXPECT_TRUE(reducer.wait_step().finite);
      for (std::size_t i = 0; i < kElements; ++i) {
        const float want = sum_of_fills(comm.size(), step, i);
        EXPECT_EQ(gradient[i], want) << "step " << step << ", " << i;
        if (gradient[i] != want) break;
      }
    }
  }
}

// The last rank of a sum between steps is waited for, which is the exchange's time.
TEST(Reducer, SumsBetweenStepsTakeTheTimeOfTheLastRank) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  constexpr double kLate_s = 0.3;
  Reducer reducer(comm, gradient, five_buckets("none"), {});
  const int p = comm.size();
  reducer.run([](Communicator& c) { c.barrier(); });
  if (comm.rank() + 1 == p) std::this_thread::sleep_for(std::chrono::duration<double>(kLate_s));
  std::vector<std::int64_t> counts = {1, comm.rank()};
  reducer.all_sum(counts);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{p, p * (p - 1) / 2}));
  const CommCost cost = reducer.take_times().total;
  EXPECT_EQ(cost.comm_s, cost.peer_wait_s);
  if (comm.rank() + 1 < p) {
    EXPECT_GT(cost.peer_wait_s, kLate_s / 2);
  }
}

TEST(Reducer, CompressedReplicasAreIdenticalAndTimingDoesNotMatter) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  std::uint64_t hashes[2] = {};
  for (int round = 0; round < 2; ++round) {
    ReducerOptions options{.segment_bytes = 1024, .buckets_in_flight = 2};
    std::uint64_t looks = 0;
    if (round == 1 && comm.rank() == comm.size() - 1) {
      const CounterRng rng(9, RandomStream::test);
      options.on_look = [&looks, rng] {
        if (rng.below(4, ++looks) == 0) std::this_thread::sleep_for(300us);
      };
    }
    Reducer reducer(comm, gradient, five_buckets("q4:block=64"), options);
    for (std::uint64_t step = 0; step < 5; ++step) {
      reducer.begin_step(step);
      fill(gradient, comm.rank(), step);
      for (std::size_t b = 0; b < reducer.buckets().size(); ++b) {
        if (round == 1 && comm.rank() == 0) std::this_thread::sleep_for(1ms);
        reducer.bucket_ready(b);
      }
      EXPECT_TRUE(reducer.wait_step().finite);
      hashes[round] += reducer.run([&](Communicator& c) { return agree_on_hash(c, gradient); });
    }
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

// I2, for buckets that are segments and for those that are matrices (PowerSGD): all that went in
// came out or is in the residuals, over several steps, whatever the topology.
TEST(Reducer, ConservesTheSum) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  std::vector<float> gradient(kElements);
  std::vector<int> hosts;  // two: on a single one the hierarchical topology encodes nothing
  for (int rank = 0; rank < comm.size(); ++rank) hosts.push_back(rank % 2);
  for (const char* spec : {"q8", "sign:block=64", "topk:ratio=0.05", "powersgd:rank=2"}) {
    for (const Topology& topology : topology_list()) {
      std::vector<double> inputs(kElements), delivered(kElements);
      Reducer reducer(
          comm, gradient, five_buckets(spec),
          {.topology = std::string(topology.name), .hosts = hosts, .segment_bytes = 1024});
      for (std::uint64_t step = 0; step < 4; ++step) {
        reducer.begin_step(step);
        fill(gradient, comm.rank(), step);
        for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
        ASSERT_TRUE(reducer.wait_step().finite);
        for (std::size_t i = 0; i < kElements; ++i) {
          inputs[i] += static_cast<double>(sum_of_fills(comm.size(), step, i));
          delivered[i] += static_cast<double>(gradient[i]);
        }
      }
      std::vector<double> residual(reducer.residual().begin(), reducer.residual().end());
      reducer.run([&](Communicator& c) { c.all_sum(residual); });
      double error = 0.0, left = 0.0, all = 0.0;
      for (std::size_t i = 0; i < kElements; ++i) {
        error += std::pow(inputs[i] - delivered[i] - residual[i], 2);
        left += residual[i] * residual[i];
        all += inputs[i] * inputs[i];
      }
      EXPECT_LT(error, 1e-10 * all) << spec << " " << topology.name;
      EXPECT_GT(left, 1e-6 * all) << spec << " " << topology.name;  // or nothing would be shown
    }
  }
}

TEST(Reducer, AStepThatIsNotFiniteIsSeenByAllAndPutBack) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  Reducer reducer(comm, gradient, five_buckets("q8:block=64"), {.segment_bytes = 1024});
  const auto run_step = [&](std::uint64_t step, bool is_bad) {
    reducer.begin_step(step);
    fill(gradient, comm.rank(), step);
    if (is_bad && comm.rank() == 0) gradient[1700] = std::numeric_limits<float>::quiet_NaN();
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    return reducer.wait_step().finite;
  };
  EXPECT_TRUE(run_step(0, false));
  const std::vector<float> before(reducer.residual().begin(), reducer.residual().end());
  EXPECT_FALSE(run_step(1, true));
  // Far from the bad value everything that was given is in the residuals now.
  std::vector<double> change(before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    change[i] = static_cast<double>(reducer.residual()[i]) - static_cast<double>(before[i]);
  }
  reducer.run([&](Communicator& c) { c.all_sum(std::span(change)); });
  if (comm.size() > 1) {
    for (std::size_t i = 3501; i < 13501; ++i) {
      EXPECT_NEAR(change[i], static_cast<double>(sum_of_fills(comm.size(), 1, i)), 1e-2) << i;
    }
  } else {
    EXPECT_TRUE(reducer.residual().empty());
  }
  EXPECT_TRUE(run_step(2, false));
}

// An action that comes after its moment is refused, and is not kept for the next step.
TEST(FollowUp, IsTakenOnlyIfItIsOfferedInTime) {
  FollowUp follow_up;
  const FollowUp::Action action = [] {};
  follow_up.offer(action);
  EXPECT_EQ(follow_up.take(), &action);
  follow_up.reset();
  EXPECT_EQ(follow_up.take(), nullptr);
  follow_up.offer(action);
  follow_up.reset();
  EXPECT_EQ(follow_up.take(), nullptr);
}

// The action is called once, on the reducer's thread, when the sums are in place and before the
// caller returns. If some rank's values are not finite, it is not called.
TEST(Reducer, AnActionFollowsFiniteSums) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  Reducer reducer(comm, gradient, five_buckets("none"), {.segment_bytes = 1024});
  std::vector<float> seen;
  std::thread::id thread;
  const FollowUp::Action action = [&] {
    seen.insert(seen.end(), gradient.begin(), gradient.end());
    thread = std::this_thread::get_id();
  };
  for (std::uint64_t step = 0; step < 6; ++step) {
    seen.clear();
    reducer.begin_step(step);
    fill(gradient, comm.rank(), step);
    const bool is_bad = step == 2;
    if (is_bad && comm.rank() == 0) gradient[1700] = std::numeric_limits<float>::infinity();
    for (std::size_t b = 1; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    // The first bucket is ready only when the caller waits.
    std::jthread late([&] {
      std::this_thread::sleep_for(100ms);
      reducer.bucket_ready(0);
    });
    const bool has_action = step != 4;
    EXPECT_EQ(reducer.wait_step(has_action ? &action : nullptr).finite, !is_bad);
    EXPECT_EQ(seen.size(), has_action && !is_bad ? kElements : 0u) << "step " << step;
    if (seen.empty()) continue;
    EXPECT_EQ(seen, gradient) << "step " << step;
    EXPECT_EQ(seen.back(), sum_of_fills(comm.size(), step, kElements - 1)) << "step " << step;
    EXPECT_NE(thread, std::this_thread::get_id());
  }
}

TEST(Reducer, AnActionThatThrowsIsAFailure) {
  Communicator self(MPI_COMM_SELF);
  std::vector<float> gradient(kElements);
  Reducer reducer(self, gradient, five_buckets("none"), {.segment_bytes = 1024});
  reducer.begin_step(0);
  for (std::size_t b = 1; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
  std::jthread late([&] {
    std::this_thread::sleep_for(100ms);
    reducer.bucket_ready(0);
  });
  const FollowUp::Action action = [] { throw Error(ErrorKind::device, "the GPU has failed"); };
  try {
    static_cast<void>(reducer.wait_step(&action));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
  }
  late.join();
  EXPECT_THROW(reducer.begin_step(1), Error);
}

// The rank whose own values are bad knows where the first one is, and the others that theirs are
// not.
TEST(Reducer, TheFirstValueThatIsNotFiniteIsFound) {
  Communicator comm;
  for (const Topology& topology : topology_list()) {
    for (const char* spec : {"none", "q8:block=64", "powersgd:rank=2"}) {
      std::vector<float> gradient(kElements);
      Reducer reducer(comm, gradient, five_buckets(spec),
                      {.topology = std::string(topology.name), .segment_bytes = 1024});
      for (std::uint64_t step = 0; step < 3; ++step) {
        const bool is_mine = step == 1 && comm.rank() == comm.size() - 1;
        reducer.begin_step(step);
        fill(gradient, comm.rank(), step);
        if (is_mine) {
          gradient[1777] = std::numeric_limits<float>::quiet_NaN();
          gradient[1901] = gradient[9000] = std::numeric_limits<float>::infinity();
        }
        for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
        const StepVerdict verdict = reducer.wait_step();
        EXPECT_EQ(verdict.finite, step != 1) << topology.name << " " << spec;
        EXPECT_EQ(verdict.first_not_finite, is_mine ? 1777 : Exchange::kAllFinite)
            << topology.name << " " << spec;
      }
    }
  }
}

TEST(Reducer, AThrottledLinkIsSlowAndChangesNothing) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  constexpr double kRate = 20e6;
  std::vector<float> gradient(kElements);
  for (const Topology& topology : topology_list()) {
    std::uint64_t hashes[2] = {};
    for (const bool is_throttled : {false, true}) {
      Reducer reducer(comm, gradient, five_buckets("q8:block=64"),
                      {.topology = std::string(topology.name),
                       .segment_bytes = 1024,
                       .throttle_bits_per_s = is_throttled ? kRate : 0.0});
      for (std::uint64_t step = 0; step < 3; ++step) {
        reducer.begin_step(step);
        fill(gradient, comm.rank(), step);
        for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
        EXPECT_TRUE(reducer.wait_step().finite);
        hashes[is_throttled ? 1 : 0] +=
            reducer.run([&](Communicator& c) { return agree_on_hash(c, gradient); });
      }
      const CommCost cost = reducer.take_times().total;
      if (!is_throttled) continue;
      // All but the start notices goes over the link, and a slack's worth in every step is free.
      const double notices = 3.0 * 5 * kMessageFrameBytes * (comm.size() - 1);
      const double least_s =
          (static_cast<double>(cost.sent_bytes) - notices) * 8.0 / kRate - 3 * LinkModel::kSlack_s;
      EXPECT_GT(cost.comm_s, least_s) << topology.name;
      EXPECT_GT(cost.sent_bytes, 0u);
    }
    EXPECT_EQ(hashes[0], hashes[1]) << topology.name;
  }
}

TEST(Reducer, JobsRunInOrderAndTheirErrorsComeBack) {
  Communicator comm;
  std::vector<float> gradient(10);
  Reducer reducer(comm, gradient, {}, {});
  EXPECT_EQ(reducer.run([](Communicator& c) { return c.all_sum(std::int64_t{1}); }), comm.size());
  try {
    reducer.run([](Communicator& c) { c.agree(false, "no", ErrorKind::data); });
    ADD_FAILURE() << "agreed";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
  }
  // The thread goes on.
  reducer.begin_step(0);
  EXPECT_TRUE(reducer.wait_step().finite);
  EXPECT_EQ(reducer.run([](Communicator& c) { return c.size(); }), comm.size());
}

TEST(Reducer, BytesAreThoseOfTheFormula) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  const std::size_t segment_bytes = 1024;
  Reducer reducer(comm, gradient, five_buckets("q8:block=64"), {.segment_bytes = segment_bytes});
  constexpr std::uint64_t kSteps = 3;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    reducer.begin_step(step);
    fill(gradient, comm.rank(), step);
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    EXPECT_TRUE(reducer.wait_step().finite);
  }
  const CommTimes times = reducer.take_times();
  std::uint64_t total = 0;
  for (std::size_t b = 0; b < reducer.buckets().size(); ++b) {
    const Bucket& bucket = reducer.buckets()[b];
    const auto codec = make_codec(bucket.codec);
    const std::uint64_t want =
        kSteps * ring_wire_bytes({.elements = bucket.elements,
                                  .ranks = static_cast<std::size_t>(comm.size()),
                                  .segment = segment_bytes / sizeof(float)},
                                 {}, static_cast<std::size_t>(comm.rank()), *codec);
    EXPECT_EQ(kSteps * reducer.wire_bytes(b).value(), want) << b;
    EXPECT_EQ(times.buckets[b].sent_bytes, want) << b;
    total += want;
    if (comm.size() > 1 && !bucket.codec.is_exact()) {
      EXPECT_GT(times.buckets[b].residual_norm(), 0.0);
      EXPECT_GT(times.buckets[b].relative_error(), 0.0);
      EXPECT_LT(times.buckets[b].relative_error(), 0.02);
    }
  }
  EXPECT_EQ(times.total.sent_bytes, total);
  // Taken means taken.
  EXPECT_EQ(reducer.take_times().total.sent_bytes, 0u);
}

// What a step has cost can be fetched while the next one runs, and has nothing of it.
TEST(Reducer, CostsThatWereAskedForAreThoseOfTheStepsBefore) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  Reducer reducer(comm, gradient, five_buckets("q8:block=64"), {});
  std::uint64_t of_a_step = 0;
  for (std::size_t b = 0; b < reducer.buckets().size(); ++b) of_a_step += *reducer.wire_bytes(b);
  for (std::uint64_t step = 0; step < 3; ++step) {
    reducer.begin_step(step);
    if (step > 0) {
      const CommTimes times = reducer.asked_times();
      EXPECT_EQ(times.total.sent_bytes, of_a_step);
      EXPECT_EQ(times.buckets.size(), reducer.buckets().size());
      EXPECT_EQ(times.total.residual_norm(), 0.0);
    }
    fill(gradient, comm.rank(), step);
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    EXPECT_TRUE(reducer.wait_step().finite);
    if (step < 2) reducer.ask_times();
  }
  EXPECT_EQ(reducer.take_times().total.sent_bytes, of_a_step);
}

// A rank that is late by far more than the exchange takes: its neighbours' time is peer_wait_s, not
// wire_s. Only the ratio is tested; what the machine does to both is not ours.
TEST(Reducer, ALateRanksTimeIsWaitingForPeers) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  constexpr double kLate_s = 0.4;
  std::vector<float> gradient(kElements);
  Reducer reducer(comm, gradient, five_buckets("q8:block=64"), {});
  for (std::uint64_t step = 0; step < 2; ++step) {
    reducer.run([](Communicator& c) { c.barrier(); });
    (void)reducer.take_times();
    fill(gradient, comm.rank(), step);
    reducer.begin_step(step);
    if (comm.rank() == comm.size() - 1) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kLate_s));
    }
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    EXPECT_TRUE(reducer.wait_step().finite);
    const CommCost total = reducer.take_times().total;
    if (comm.rank() != comm.size() - 1) {
      EXPECT_GT(total.peer_wait_s, kLate_s / 2);
      EXPECT_LT(total.wire_s, total.peer_wait_s / 2);
    }
  }
}

// Codecs and waiting are parts of the time in flight, which is part of the step; and not only the
// late rank's neighbour knows whom it waits for.
TEST(Reducer, TimesArePartsOfTheStepAndALateRankIsNotTheNetwork) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  std::vector<float> gradient(kElements);
  LateRank late(comm.size() - 1);
  Reducer reducer(comm, gradient, five_buckets("q8:block=64"), {.on_look = [&] { late.look(); }});
  constexpr double kRounding_s = 1e-9;
  for (std::uint64_t step = 0; step < 2; ++step) {
    reducer.run([](Communicator& c) { c.barrier(); });
    (void)reducer.take_times();
    const auto start = std::chrono::steady_clock::now();
    reducer.begin_step(step);
    fill(gradient, comm.rank(), step);
    late.start(comm, [&] {
      for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    });
    EXPECT_TRUE(reducer.wait_step().finite);
    const CommTimes times = reducer.take_times();
    const double wall_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const CommCost& total = times.total;
    EXPECT_LE(total.comm_s, wall_s);
    EXPECT_LE(total.encode_s + total.decode_s + total.peer_wait_s, total.comm_s + kRounding_s);
    EXPECT_GE(total.wire_s, 0.0);
    if (comm.rank() != comm.size() - 1) {
      EXPECT_GT(total.peer_wait_s, 0.0);
    }
    double encode_s = 0.0, decode_s = 0.0;
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) {
      SCOPED_TRACE("bucket " + std::to_string(b));
      const CommCost& cost = times.buckets[b];
      if (reducer.buckets()[b].elements > 0) {
        EXPECT_GT(cost.comm_s, 0.0);
        EXPECT_GT(cost.encode_s, 0.0);
        EXPECT_GT(cost.decode_s, 0.0);
      }
      EXPECT_LE(cost.comm_s, total.comm_s + kRounding_s);
      EXPECT_LE(cost.peer_wait_s, cost.comm_s + kRounding_s);
      EXPECT_GE(cost.wire_s, 0.0);
      encode_s += cost.encode_s;
      decode_s += cost.decode_s;
    }
    EXPECT_NEAR(encode_s, total.encode_s, kRounding_s);
    EXPECT_NEAR(decode_s, total.decode_s, kRounding_s);
  }
}

// As with a GPU: the thread asks for readiness and tells of every sum, in order.
TEST(Reducer, AsksForReadinessAndTellsWhatIsDelivered) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  std::atomic<std::size_t> finals = 0;
  std::vector<std::size_t> delivered;
  std::vector<float> seen(kElements);
  std::thread::id first_caller, delivering;
  const auto buckets = five_buckets("none");
  ReducerOptions options{.segment_bytes = 1024, .buckets_in_flight = 2};
  options.thread_start = [&] { first_caller = std::this_thread::get_id(); };
  options.is_final = [&](std::size_t b) { return b < finals; };
  options.on_delivered = [&](std::size_t b) {
    delivering = std::this_thread::get_id();
    delivered.push_back(b);
    const auto from = gradient.begin() + static_cast<std::ptrdiff_t>(buckets[b].offset);
    std::copy_n(from, buckets[b].elements,
                seen.begin() + static_cast<std::ptrdiff_t>(buckets[b].offset));
  };
  Reducer reducer(comm, gradient, buckets, options);
  std::vector<std::size_t> in_order(buckets.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  for (std::uint64_t step = 0; step < 3; ++step) {
    finals = 0;
    delivered.clear();
    fill(gradient, comm.rank(), step);
    reducer.begin_step(step);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      std::this_thread::sleep_for(1ms);
      finals = b + 1;
    }
    EXPECT_TRUE(reducer.wait_step().finite);
    EXPECT_EQ(delivered, in_order);
    EXPECT_EQ(delivering, first_caller);
    // What was there at the time of the call is the sum.
    EXPECT_EQ(seen, gradient);
    EXPECT_EQ(seen[4000], sum_of_fills(comm.size(), step, 4000));
  }
}

// Every bucket may have a topology of its own; what is sent is what wire_bytes says.
TEST(Reducer, BucketsOfDifferentTopologies) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  auto buckets = five_buckets("none");
  const char* const names[] = {"tree", "", "ps", "hierarchical", "direct"};
  for (std::size_t b = 0; b < buckets.size(); ++b) buckets[b].topology = names[b % 5];
  // Two ranks a host.
  std::vector<int> hosts;
  for (int rank = 0; rank < comm.size(); ++rank) hosts.push_back(rank / 2);
  Reducer reducer(comm, gradient, buckets, {.hosts = hosts, .segment_bytes = 1024});
  EXPECT_EQ(reducer.topology_of(0).name, "tree");
  EXPECT_EQ(reducer.topology_of(1).name, "ring");
  constexpr std::uint64_t kSteps = 4;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    reducer.begin_step(step);
    fill(gradient, comm.rank(), step);
    const auto seed = step * 100 + static_cast<std::uint64_t>(comm.rank());
    for (const std::size_t b : shuffled(buckets.size(), seed)) reducer.bucket_ready(b);
    EXPECT_TRUE(reducer.wait_step().finite);
    for (std::size_t i = 0; i < kElements; ++i) {
      const float want = sum_of_fills(comm.size(), step, i);
      EXPECT_EQ(gradient[i], want) << "step " << step << ", " << i;
      if (gradient[i] != want) break;
    }
  }
  const CommTimes times = reducer.take_times();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    ASSERT_TRUE(reducer.wire_bytes(b).has_value());
    EXPECT_EQ(times.buckets[b].sent_bytes, kSteps * *reducer.wire_bytes(b)) << b;
  }
}

// From exact to compressed and back: residuals stay, sums and bytes follow the codec.
TEST(Reducer, CodecsAreReplacedBetweenSteps) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  Reducer reducer(comm, gradient, five_buckets("none"), {.segment_bytes = 1024});
  const std::size_t n = reducer.buckets().size();
  std::vector<double> given(kElements), delivered(kElements);
  const auto run_step = [&](std::uint64_t step) {
    reducer.begin_step(step);
    fill(gradient, comm.rank(), step);
    for (std::size_t b = 0; b < n; ++b) reducer.bucket_ready(b);
    EXPECT_TRUE(reducer.wait_step().finite);
    bool is_exact = true;
    for (std::size_t i = 0; i < kElements; ++i) {
      const auto want = static_cast<double>(sum_of_fills(comm.size(), step, i));
      given[i] += want;
      delivered[i] += static_cast<double>(gradient[i]);
      is_exact = is_exact && static_cast<double>(gradient[i]) == want;
    }
    reducer.run([&](Communicator& c) { agree_on_hash(c, gradient); });
    return is_exact;
  };
  const bool has_neighbours = comm.size() > 1;
  EXPECT_TRUE(run_step(0));
  EXPECT_TRUE(reducer.residual().empty());

  std::vector<CodecSpec> codecs(n, parse_codec_spec("q4:block=64"));
  codecs.back() = CodecSpec::exact();
  reducer.replace_codecs(codecs);
  EXPECT_EQ(reducer.buckets()[0].codec, codecs[0]);
  EXPECT_EQ(run_step(1), !has_neighbours);
  EXPECT_EQ(run_step(2), !has_neighbours);

  // Exact sums leave the residuals alone.
  const std::vector<float> before(reducer.residual().begin(), reducer.residual().end());
  (void)reducer.take_times();
  reducer.replace_codecs(std::vector<CodecSpec>(n));
  EXPECT_TRUE(run_step(3));
  EXPECT_EQ(before, std::vector<float>(reducer.residual().begin(), reducer.residual().end()));
  std::uint64_t bytes = 0;
  for (std::size_t b = 0; b < n; ++b) bytes += *reducer.wire_bytes(b);
  EXPECT_EQ(reducer.take_times().total.sent_bytes, bytes);

  EXPECT_TRUE(reducer.buckets()[0].codec.is_exact());
  reducer.replace_codecs(codecs);
  EXPECT_EQ(run_step(4), !has_neighbours);
  if (!has_neighbours) return;
  std::vector<double> kept(reducer.residual().begin(), reducer.residual().end());
  reducer.run([&](Communicator& c) { c.all_sum(std::span(kept)); });
  for (std::size_t i = 0; i < kElements; ++i) {
    // Whole numbers up to 100 a rank: five sums of P ranks round to 2^-24 of at most 100 P each.
    EXPECT_NEAR(given[i], delivered[i] + kept[i], 5.0 * comm.size() * comm.size() * 100 * 0x1p-22);
  }
}

// Where the sample of a bucket is in the gradient: 16 evenly spaced runs of 256 values, or all.
std::vector<std::size_t> sampled_places(const Bucket& bucket) {
  const std::size_t runs = 16, run = 256;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < std::min(bucket.elements, runs * run); ++i) {
    const bool is_whole = bucket.elements <= runs * run;
    places.push_back(bucket.offset + (is_whole ? i : i / run * (bucket.elements / runs) + i % run));
  }
  return places;
}

TEST(Reducer, SamplesTheErrorOfWhatIsDelivered) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  Reducer reducer(comm, gradient, five_buckets("q4:block=64"), {.segment_bytes = 1024});
  const auto run_step = [&](std::uint64_t step, bool is_bad = false) {
    reducer.begin_step(step);
    fill(gradient, comm.rank(), step);
    if (is_bad && comm.rank() == 0) gradient[3] = std::numeric_limits<float>::infinity();
    for (std::size_t b = 0; b < reducer.buckets().size(); ++b) reducer.bucket_ready(b);
    (void)reducer.wait_step();
    return reducer.take_times();
  };
  EXPECT_EQ(run_step(0).total.delivered_value_squares, 0.0);
  reducer.sample_error();
  const CommTimes times = run_step(1);
  double error = 0.0, value = 0.0;
  std::size_t elements = 0;
  for (std::size_t b = 0; b < reducer.buckets().size(); ++b) {
    const Bucket& bucket = reducer.buckets()[b];
    double bucket_error = 0.0, bucket_value = 0.0;
    for (const std::size_t i : sampled_places(bucket)) {
      const auto exact = static_cast<double>(sum_of_fills(comm.size(), 1, i));
      bucket_error += std::pow(static_cast<double>(gradient[i]) - exact, 2);
      bucket_value += exact * exact;
    }
    // Each rank adds up a part of the values.
    EXPECT_NEAR(times.buckets[b].delivered_error_squares, bucket_error, 1e-12 * bucket_error) << b;
    EXPECT_NEAR(times.buckets[b].delivered_value_squares, bucket_value, 1e-12 * bucket_value) << b;
    error += bucket_error;
    value += bucket_value;
    elements += sampled_places(bucket).size();
  }
  EXPECT_NEAR(times.total.delivered_relative_error(), std::sqrt(error / value), 1e-9);
  // All values but a rank's own part, both sums of each bucket, and the checksums of two messages.
  const auto ranks = static_cast<std::size_t>(comm.size()),
             me = static_cast<std::size_t>(comm.rank());
  const std::size_t own = elements * (me + 1) / ranks - elements * me / ranks;
  EXPECT_EQ(times.total.sample_bytes,
            4 * (elements - own) + (16 * reducer.buckets().size() + 2 * 4) * (ranks - 1));
  if (comm.size() > 1) {
    EXPECT_GT(times.total.delivered_relative_error(), 0.01);
  }
  std::uint64_t bytes = 0;
  for (std::size_t b = 0; b < reducer.buckets().size(); ++b) bytes += *reducer.wire_bytes(b);
  EXPECT_EQ(times.total.sent_bytes, bytes);  // the sample's are apart
  // One step, not all; and nothing of a step that is skipped.
  EXPECT_EQ(run_step(2).total.sample_bytes, 0u);
  reducer.sample_error();
  EXPECT_EQ(run_step(3, true).total.sample_bytes, 0u);
  EXPECT_EQ(run_step(4).total.sample_bytes, 0u);
}

// The sample of a large bucket is 16 runs of 256 values, which are enough to know the error.
TEST(Reducer, SamplesALargeBucketInParts) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  const std::size_t n = 100'003;
  std::vector<float> gradient(n);
  Reducer reducer(
      comm, gradient,
      plan_buckets(std::vector<TensorSlot>{{0, 1, n, false}}, {.codec = parse_codec_spec("q4")}),
      {});
  reducer.sample_error();
  reducer.begin_step(0);
  fill(gradient, comm.rank(), 0);
  reducer.bucket_ready(0);
  EXPECT_TRUE(reducer.wait_step().finite);
  const CommCost cost = reducer.take_times().total;
  double error = 0.0, value = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto exact = static_cast<double>(sum_of_fills(comm.size(), 0, i));
    error += std::pow(static_cast<double>(gradient[i]) - exact, 2);
    value += exact * exact;
  }
  const auto others = static_cast<std::size_t>(comm.size() - 1);
  const auto me = static_cast<std::size_t>(comm.rank());
  const std::size_t own = 4'096 * (me + 1) / (others + 1) - 4'096 * me / (others + 1);
  EXPECT_EQ(cost.sample_bytes, 4 * (4'096 - own) + (16 + 2 * 4) * others);
  // 4,096 squares of about normal errors: the root of their mean is known to 1 / sqrt(8192), about
  // one per cent.
  EXPECT_NEAR(cost.delivered_relative_error(), std::sqrt(error / value),
              0.05 * std::sqrt(error / value));
}

// DGC's momentum comes before the sum, and the velocity is state.
TEST(Reducer, DgcExchangesTheVelocity) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  // Everything is sent in every step: masking leaves no momentum but on a rank that is alone.
  const float momentum = comm.size() == 1 ? 0.5f : 0.0f;
  Reducer reducer(comm, gradient, five_buckets("dgc:ratio=1,momentum=0.5"),
                  {.segment_bytes = 1024});
  std::vector<float> velocity(kElements);
  for (std::uint64_t step = 0; step < 3; ++step) {
    reducer.begin_step(step);
    fill(gradient, comm.rank(), step);
    for (std::size_t b = reducer.buckets().size(); b-- > 0;) reducer.bucket_ready(b);
    EXPECT_TRUE(reducer.wait_step().finite);
    std::size_t compressed = 0;
    for (const Bucket& bucket : reducer.buckets()) {
      // One-dimensional tensors are sent in fp32 and leave it to the optimiser.
      const bool is_dgc = bucket.codec.name == "dgc";
      if (is_dgc) compressed += bucket.elements;
      for (std::size_t i = bucket.offset; i < bucket.offset + bucket.elements; ++i) {
        const float sum = sum_of_fills(comm.size(), step, i);
        velocity[i] = is_dgc ? momentum * velocity[i] + sum : sum;
        EXPECT_EQ(gradient[i], velocity[i]) << "step " << step << ", value " << i;
        if (gradient[i] != velocity[i]) break;
      }
    }
    EXPECT_GT(compressed, kElements / 2);
  }
  StateList list;
  reducer.list_state(list);
  const std::span<float> listed = test::floats_of(list, "exchange/velocity");
  ASSERT_EQ(listed.size(), kElements);
  EXPECT_EQ(comm.size() == 1, std::ranges::any_of(listed, [](float v) { return v != 0.0f; }));
}

// Where nothing is lost, the ranks' velocities add up to that of SGD on one rank; also with
// Nesterov's momentum, and while a warm-up sends fp32. Numbers are whole multiples of 2^-4, so that
// all is exact.
TEST(Reducer, VelocitiesAddUpToThatOfSgd) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  for (const bool has_nesterov : {false, true}) {
    SCOPED_TRACE(has_nesterov);
    std::vector<Bucket> buckets = five_buckets("none");
    buckets[0].velocity = buckets[1].velocity = Bucket::Velocity::on;
    Reducer reducer(comm, gradient, buckets,
                    {.segment_bytes = 1024, .momentum = 0.5f, .has_nesterov = has_nesterov});
    std::vector<float> velocity(kElements);
    for (std::uint64_t step = 0; step < 4; ++step) {
      reducer.begin_step(step);
      fill(gradient, comm.rank(), step);
      for (std::size_t b = buckets.size(); b-- > 0;) reducer.bucket_ready(b);
      EXPECT_TRUE(reducer.wait_step().finite);
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        for (std::size_t i = buckets[b].offset; i < buckets[b].offset + buckets[b].elements; ++i) {
          const float sum = sum_of_fills(comm.size(), step, i);
          velocity[i] = 0.5f * velocity[i] + sum;
          const float want = b > 1 ? sum : has_nesterov ? sum + 0.5f * velocity[i] : velocity[i];
          ASSERT_EQ(gradient[i], want) << "step " << step << ", value " << i;
        }
      }
    }
    StateList list;
    reducer.list_state(list);
    EXPECT_EQ(test::floats_of(list, "exchange/velocity").size(), kElements);
  }
}

// velocity=masked: where something was delivered the velocity begins anew, elsewhere it goes on.
TEST(Reducer, AMaskedVelocityBeginsAnewWhereItWasDelivered) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  std::vector<float> gradient(kElements), velocity(kElements);
  std::vector<Bucket> buckets = five_buckets("topk:ratio=0.1");
  for (Bucket& bucket : buckets) {
    if (bucket.codec.name == "topk") bucket.velocity = Bucket::Velocity::masked;
  }
  Reducer reducer(comm, gradient, buckets, {.segment_bytes = 1024, .momentum = 0.5f});
  std::size_t delivered = 0, kept = 0;
  for (std::uint64_t step = 0; step < 3; ++step) {
    reducer.begin_step(step);
    fill(gradient, comm.rank(), step);
    const std::vector<float> own = gradient;
    for (std::size_t b = buckets.size(); b-- > 0;) reducer.bucket_ready(b);
    EXPECT_TRUE(reducer.wait_step().finite);
    StateList list;
    reducer.list_state(list);
    const std::span<float> listed = test::floats_of(list, "exchange/velocity");
    for (const Bucket& bucket : buckets) {
      if (bucket.velocity == Bucket::Velocity::off) continue;
      for (std::size_t i = bucket.offset; i < bucket.offset + bucket.elements; ++i) {
        velocity[i] = gradient[i] != 0.0f ? 0.0f : 0.5f * velocity[i] + own[i];
        ASSERT_EQ(listed[i], velocity[i]) << "step " << step << ", value " << i;
        ++(gradient[i] != 0.0f ? delivered : kept);
      }
    }
  }
  EXPECT_GT(delivered, 500u);
  EXPECT_GT(kept, 5000u);
}

// One rank wishes to stop: all are told with the sums of the step in which it has said so, whatever
// kind of exchange the only bucket has. A rank that is alone knows its own wish.
TEST(Reducer, AWishToStopComesToAllRanksWithTheSums) {
  Communicator comm;
  for (const char* codec : {"none", "q8:block=64", "dgc:ratio=0.1", "powersgd:rank=2"}) {
    SCOPED_TRACE(codec);
    std::vector<float> gradient(10000);
    std::atomic<bool> wish = false;
    Reducer reducer(comm, gradient,
                    plan_buckets(std::vector<TensorSlot>{{0, 100, 100, false}},
                                 {.codec = parse_codec_spec(codec), .min_compress_bytes = 100}),
                    {.segment_bytes = 1024, .stop_wish = &wish});
    ASSERT_EQ(reducer.buckets().size(), 1u);
    const auto stops = [&](std::uint64_t step) {
      reducer.begin_step(step);
      fill(gradient, comm.rank(), step);
      reducer.bucket_ready(0);
      return reducer.wait_step().stop;
    };
    EXPECT_FALSE(stops(0));
    wish = comm.rank() == comm.size() - 1;
    EXPECT_TRUE(stops(1));
    wish = false;
    EXPECT_FALSE(stops(2));
  }
}

TEST(Reducer, CanBeDestroyedInTheMiddleOfAStep) {
  Communicator comm;
  std::vector<float> gradient(kElements);
  {
    Reducer reducer(comm, gradient, five_buckets("none"), {});
    reducer.begin_step(0);
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_THROW(Reducer(comm, gradient, five_buckets("none"), {.topology = "star"}), Error);
  auto buckets = five_buckets("none");
  buckets[1].topology = "star";
  EXPECT_THROW(Reducer(comm, gradient, buckets, {}), Error);
}

}  // namespace
}  // namespace dp
