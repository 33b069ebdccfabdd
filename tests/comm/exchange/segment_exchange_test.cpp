// What the engine promises with every codec, on every topology: the same bits on all ranks (I1),
// nothing lost with feedback and as much as is told without (I2), the bytes of the formula (I3),
// input that is not finite seen by all and nothing lost, independence of timing (I6).
//
// The codecs of a test run at the same time, each with a bucket of its own (exchange_fleet.hpp).
// Segments are of 64 floats, so that a few hundred floats make many segments and several groups.
#include "comm/exchange/segment_exchange.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/comm/exchange/exchange_fleet.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

using namespace testing_support;

constexpr std::size_t kSegment = 64;

TEST(SegmentExchange, EveryCodecLosesNothingUntold) {
  Communicator comm;
  const auto p = static_cast<std::size_t>(comm.size());
  for (const Case& c : all_cases(comm.size())) {
    // Each host's sum on a ring between hosts, else each rank's values, is encoded once.
    const std::size_t hosts = c.host_count(comm.size());
    const std::size_t encodes = p == 1 || hosts == 1 ? 0 : hosts;
    for (const std::size_t n : {p + 1, 63 * p + 1, 3 * 64 * p + 1}) {
      SCOPED_TRACE(c.text() + ", " + std::to_string(n));
      Fleet fleet(comm, c, all_specs(), n, kSegment);
      fleet.run_steps(comm, n, encodes);
    }
  }
}

// One bad value on one rank: all ranks know, nobody's residual is spoilt, and what the other ranks
// gave is conserved: it is delivered, dropped or kept, and put back into residuals.
TEST(SegmentExchange, InputThatIsNotFiniteIsSeenByAllAndLosesNothing) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  const std::size_t n = 403;
  std::size_t turn = 0;
  for (const Case& c : all_cases(comm.size())) {
    const bool is_exact = c.host_count(comm.size()) == 1;
    const int stride = comm.size() <= 4 ? 1 : 3;
    for (int culprit = 0; culprit < comm.size(); culprit += stride) {
      SCOPED_TRACE(c.text() + ", rank " + std::to_string(culprit));
      Fleet fleet(comm, c, small_specs(), n, kSegment);
      fleet.set_input(rank_input(comm, n, 0));
      fleet.run(0);
      fleet.set_input(rank_input(comm, n, 1));
      std::vector<std::size_t> places;
      ++turn;
      for (std::size_t s = 0; s < fleet.size(); ++s) {
        // Over codecs and culprits all three values come to all three places.
        places.push_back(std::array{std::size_t{0}, n / 2, n - 1}[(s / 3 + turn) % 3]);
        if (comm.rank() == culprit) fleet.bench(s).gradient[places[s]] = kBad[(s + turn) % 3];
      }
      fleet.run(1);
      std::vector<std::vector<float>> residuals;
      for (std::size_t s = 0; s < fleet.size(); ++s) {
        Bench& bench = fleet.bench(s);
        EXPECT_FALSE(bench.exchange->finite()) << fleet.spec(s);
        for (const float v : bench.gradient) EXPECT_TRUE(std::isfinite(v)) << fleet.spec(s);
        for (const float v : bench.residual) EXPECT_TRUE(std::isfinite(v)) << fleet.spec(s);
        residuals.push_back(bench.residual);
        if (comm.rank() != culprit) continue;
        // The whole segment of the culprit counts as zeros.
        for (const auto& [begin, size] : fleet.cut(s).segments) {
          if (places[s] < begin || places[s] >= begin + size) continue;
          std::fill_n(fleet.counted(s).begin() + static_cast<std::ptrdiff_t>(begin), size, 0.0f);
        }
      }
      fleet.expect_same_bits();
      fleet.expect_conserved();
      for (std::size_t s = 0; s < fleet.size(); ++s) {
        fleet.bench(s).exchange->put_back_delivered();
        // With one host nothing is encoded, so residuals have given nothing.
        if (!is_exact) continue;
        EXPECT_EQ(fleet.bench(s).residual, residuals[s]) << fleet.spec(s);
      }
      if (!is_exact) fleet.expect_put_back(residuals);
      // And the next step is an ordinary one.
      fleet.set_input(rank_input(comm, n, 2));
      fleet.run(2);
      for (std::size_t s = 0; s < fleet.size(); ++s) {
        EXPECT_TRUE(fleet.bench(s).exchange->finite()) << fleet.spec(s);
      }
      fleet.expect_conserved();
    }
  }
}

// A segment's payload is the same whoever encodes it, in a step that is not finite, too.
TEST(SegmentExchange, ThreadsOfTheCodecChangeNoBit) {
  Communicator comm;
  constexpr std::size_t kFloats = 5'000;
  CodecThreads threads(3);
  struct Outcome {
    std::vector<std::uint32_t> bits;  // of sums and residuals, step after step
    std::vector<bool> is_finite;
    std::uint64_t sent_bytes = 0;
    bool operator==(const Outcome&) const = default;
  };
  for (const char* topology : {"ring", "direct", "tree"}) {
    for (const char* spec : {"none", "q8:block=64", "ecq", "topk:ratio=0.1"}) {
      const auto run = [&](CodecThreads* with) {
        Bench bench(comm, spec, kFloats, kSegment, 0, topology, {}, {}, with);
        Outcome outcome;
        for (std::uint64_t step = 0; step < 4; ++step) {
          std::ranges::copy(rank_input(comm, kFloats, step), bench.gradient.begin());
          if (step == 2 && comm.rank() == 0) {
            bench.gradient[kFloats / 3] = std::numeric_limits<float>::quiet_NaN();
          }
          bench.run(step);
          for (const auto* values : {&bench.gradient, &bench.residual}) {
            for (const float v : *values) outcome.bits.push_back(std::bit_cast<std::uint32_t>(v));
          }
          outcome.is_finite.push_back(bench.exchange->finite());
        }
        outcome.sent_bytes = bench.exchange->stats().sent_bytes;
        return outcome;
      };
      const Outcome alone = run(nullptr);
      EXPECT_EQ(alone.is_finite[2], false);
      EXPECT_TRUE(run(&threads) == alone) << topology << ' ' << spec;
    }
  }
}

// Every rank's values are within the codecs' range and the sum is not: segment_exchange.hpp says
// who counts as one with zeros then, and where others' residuals lose what they have given.
TEST(SegmentExchange, ASumBeyondTheCodecsRangeIsSeenByAll) {
  Communicator comm;
  const std::size_t n = 403, huge = 200;
  const auto p = static_cast<std::size_t>(comm.size());
  for (const Case& c : all_cases(comm.size())) {
    const std::size_t hosts = c.host_count(comm.size());
    if (p < 3 || hosts == 1) continue;  // 6e37 can be carried, and one host's sums are fp32
    SCOPED_TRACE(c.text());
    Fleet fleet(comm, c, {"q8:block=64", "q4n:block=64", "fp8:block=64", "q8:block=64,ef=off"}, n,
                kSegment);
    fleet.set_input(rank_input(comm, n, 0));
    fleet.run(0);
    auto values = rank_input(comm, n, 1);
    values[huge] = 3e37f;  // three of them are more than 2^126
    fleet.set_input(values);
    fleet.run(1);
    const bool may_lose = c.topology == "direct" || c.topology == "grid" || c.topology == "tree" ||
                          c.topology == "ps";
    std::vector<std::vector<bool>> is_lost;
    std::vector<std::vector<float>> residuals;
    for (std::size_t s = 0; s < fleet.size(); ++s) {
      Bench& bench = fleet.bench(s);
      EXPECT_FALSE(bench.exchange->finite()) << fleet.spec(s);
      residuals.push_back(bench.residual);
      // 1: this rank counts as one with zeros; 2: it has sent zeros.
      const auto& records = fleet.records(s);
      std::vector<int> mine(n), all(n * p);
      for (std::size_t i = 0; i < n; ++i) {
        mine[i] = (records.is_refused[i] ? 1 : 0) + (records.is_zeroed[i] ? 1 : 0);
      }
      MPI_Allgather(mine.data(), static_cast<int>(n), MPI_INT, all.data(), static_cast<int>(n),
                    MPI_INT, comm.handle());
      std::vector<bool>& lost = is_lost.emplace_back(n);
      const auto rank = static_cast<std::size_t>(comm.rank());
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t r = 0; r < p; ++r) {
          const int what = all[r * n + i];
          if (may_lose && what == 2) lost[i] = true;
          const bool is_mine = c.hosts.empty() ? r == rank : c.hosts[r] == c.hosts[rank];
          if (what > 0 && is_mine) fleet.counted(s)[i] = 0.0f;
        }
        // Who sends zeros keeps its residual.
        if (mine[i] == 2 && fleet.has_residual(s)) {
          EXPECT_EQ(bench.residual[i], fleet.residual_before(s)[i]) << fleet.spec(s);
        }
      }
      EXPECT_LE(std::count(lost.begin(), lost.end(), true),
                static_cast<std::ptrdiff_t>(kSegment + kSegment / 4));
      EXPECT_EQ(lost[huge], may_lose) << fleet.spec(s);
    }
    fleet.expect_same_bits();
    fleet.expect_conserved(is_lost);
    for (std::size_t s = 0; s < fleet.size(); ++s) fleet.bench(s).exchange->put_back_delivered();
    fleet.expect_put_back(residuals);
  }
}

// The same seed gives the same bits, whatever the timing of messages.
TEST(SegmentExchange, TimingDoesNotChangeTheBits) {
  Communicator comm;
  const std::size_t n = 403;
  for (const Case& c : all_cases(comm.size())) {
    SCOPED_TRACE(c.text());
    std::vector<std::vector<float>> sums, residuals;
    for (int round = 0; round < 3; ++round) {
      Fleet fleet(comm, c, small_specs(), n, kSegment);
      const CounterRng rng(5, RandomStream::test, static_cast<std::uint64_t>(comm.rank()));
      // In the second round rank 1 dawdles at random, in the third all but rank 0.
      const bool dawdles =
          (round == 1 && comm.rank() == 1 % comm.size()) || (round == 2 && comm.rank() > 0);
      std::uint64_t looks = 0;
      for (std::uint64_t step = 0; step < 2; ++step) {
        fleet.set_input(rank_input(comm, n, step));
        fleet.run(step, [&] {
          if (dawdles && rng.below(16, looks++) == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(rng.below(200, looks)));
          }
        });
      }
      for (std::size_t s = 0; s < fleet.size(); ++s) {
        if (round == 0) {
          sums.push_back(fleet.bench(s).gradient);
          residuals.push_back(fleet.bench(s).residual);
          continue;
        }
        EXPECT_EQ(sums[s], fleet.bench(s).gradient) << fleet.spec(s) << ", round " << round;
        EXPECT_EQ(residuals[s], fleet.bench(s).residual) << fleet.spec(s) << ", round " << round;
      }
    }
  }
}

// A rank wishes to stop at any time: before an exchange, or in the middle of it. At the exchange's
// end all ranks know it or none does, and in the exchange after it all do. Headers have room for
// it, so nothing more is sent; and the next exchange begins without it.
TEST(SegmentExchange, AWishToStopIsKnownToAllOrNone) {
  Communicator comm;
  const std::size_t n = 403;
  const std::vector<std::string> specs(8, "q8:block=64");  // each is stopped at another moment
  const int stride = comm.size() <= 4 ? 1 : 3;
  for (const Case& c : all_cases(comm.size())) {
    for (int culprit = 0; culprit < comm.size(); culprit += stride) {
      SCOPED_TRACE(c.text() + ", rank " + std::to_string(culprit));
      Fleet fleet(comm, c, specs, n, kSegment);
      const auto wish = [&](std::size_t s, bool value) {
        if (comm.rank() == culprit && s < fleet.size()) fleet.bench(s).stop_wish = value;
      };
      const auto ranks_that_know = [&](std::size_t s) {
        int mine = fleet.bench(s).exchange->stop_is_wished() ? 1 : 0, sum = 0;
        MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, comm.handle());
        return sum;
      };
      const int all = comm.size() > 1 ? comm.size() : 0;
      std::size_t looks = 0;
      fleet.set_input(rank_input(comm, n, 0));
      fleet.run(0, [&] { wish(looks++, true); });
      for (std::size_t s = 0; s < fleet.size(); ++s) {
        wish(s, true);
        const int count = ranks_that_know(s);
        EXPECT_TRUE(count == 0 || count == all) << s << ": " << count;
      }
      fleet.set_input(rank_input(comm, n, 1));
      fleet.run(1);
      for (std::size_t s = 0; s < fleet.size(); ++s) {
        EXPECT_EQ(ranks_that_know(s), all) << s;
        wish(s, false);
      }
      fleet.set_input(rank_input(comm, n, 2));
      fleet.run(2);
      for (std::size_t s = 0; s < fleet.size(); ++s) EXPECT_EQ(ranks_that_know(s), 0) << s;
      fleet.expect_same_bits();
      fleet.expect_bytes_of_formula(3);
    }
  }
}

// A codec whose memory takes 20 ms for a sum of squares.
class SlowToSample final : public WrappedCodec {
 public:
  static constexpr auto kTime = std::chrono::milliseconds(20);

  using WrappedCodec::WrappedCodec;
  [[nodiscard]] const SegmentMemory& memory() const override { return memory_; }

 private:
  class Memory final : public SegmentMemory {
   public:
    [[nodiscard]] std::shared_ptr<float> allocate(std::size_t n) const override {
      return host_memory().allocate(n);
    }
    [[nodiscard]] double squares_of_sum(const float* values, const float* others,
                                        std::size_t n) const override {
      std::this_thread::sleep_for(kTime);
      return host_memory().squares_of_sum(values, others, n);
    }
    [[nodiscard]] double squares_of_difference(const float* values, const float* others,
                                               std::size_t n) const override {
      std::this_thread::sleep_for(kTime);
      return host_memory().squares_of_difference(values, others, n);
    }
    [[nodiscard]] bool is_finite(const float* values, std::size_t n) const override {
      return host_memory().is_finite(values, n);
    }
    void to_host(const float* from, float* to, std::size_t n) const override {
      host_memory().to_host(from, to, n);
    }
    void add(const float* values, float* sums, std::size_t n) const override {
      host_memory().add(values, sums, n);
    }
    void scale(float factor, float* values, std::size_t n) const override {
      host_memory().scale(factor, values, n);
    }
    void fill(float value, float* values, std::size_t n) const override {
      host_memory().fill(value, values, n);
    }
    void add_momentum(const Momentum& factors, float* gradient, float* velocity,
                      std::size_t n) const override {
      host_memory().add_momentum(factors, gradient, velocity, n);
    }
    void clear(Where where, const float* at, float* values, std::size_t n) const override {
      host_memory().clear(where, at, values, n);
    }
    std::size_t sample(const float* values, const float* others, std::size_t n, std::size_t run,
                       std::size_t stride, float* to) const override {
      return host_memory().sample(values, others, n, run, stride, to);
    }
    void count_magnitudes(const float* values, const float* others, std::size_t n,
                          std::span<std::int64_t, kMagnitudes> counts) const override {
      host_memory().count_magnitudes(values, others, n, counts);
    }
  };
  Memory memory_;
};

// What is looked at for telemetry is no time of the network.
TEST(SegmentExchange, ASampledEncodeIsTimeOfTheEncoder) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  const std::size_t n = kSegment;
  Bench bench(comm, std::make_unique<SlowToSample>(parse_codec_spec("q8:block=64")), n, kSegment);
  comm.barrier();
  std::ranges::copy(rank_input(comm, n, 0), bench.gradient.begin());
  bench.run(0);
  // One encode of the step is sampled, which asks for two sums.
  EXPECT_GE(bench.exchange->stats().encode_s,
            2.0 * std::chrono::duration<double>(SlowToSample::kTime).count());
}

}  // namespace
}  // namespace dp
