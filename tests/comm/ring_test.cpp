// The ring: exact sums of integers, the same bits on all ranks, the bytes of the formula, what
// feedback conserves, input that is not finite, independence of timing.
#include "comm/ring.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "exchange_fixture.hpp"

namespace dp {
namespace {

using namespace testing_support;

const char* const kSpecs[] = {"none", "fp16",      "fp16:ef=off", "q16",        "q8",
                              "q4",   "q8:ef=off", "q4:block=64", "q16:ef=off", "q8:block=64"};

std::vector<std::size_t> awkward_sizes(int ranks) {
  const auto p = static_cast<std::size_t>(ranks);
  return {0, 1, p - 1, p, p + 1, 2 * p + 1, 257, 10'007};
}

float integer_value(int rank, std::size_t i) {
  return static_cast<float>(static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % 251) -
                            125);
}

TEST(Ring, SumsIntegersExactly) {
  Communicator comm;
  std::uint64_t step = 0;
  for (const std::size_t n : awkward_sizes(comm.size())) {
    for (const std::size_t segment :
         {std::size_t{1}, std::size_t{3}, std::size_t{64}, std::size_t{65536}}) {
      if (segment == 1 && n > 1000) continue;  // thousands of messages of one float
      Bench bench(comm, "none", n, segment);
      for (std::size_t i = 0; i < n; ++i) bench.gradient[i] = integer_value(comm.rank(), i);
      bench.run(step++);
      EXPECT_TRUE(bench.exchange->finite());
      for (std::size_t i = 0; i < n; ++i) {
        float want = 0.0f;
        for (int rank = 0; rank < comm.size(); ++rank) want += integer_value(rank, i);
        EXPECT_EQ(bench.gradient[i], want) << i << " of " << n << ", segments of " << segment;
        if (bench.gradient[i] != want) break;
      }
      expect_same_bits(comm, bench.gradient);
    }
  }
}

TEST(Ring, AllRanksHoldTheSameBits) {
  Communicator comm;
  for (const char* spec : kSpecs) {
    for (const std::size_t n : awkward_sizes(comm.size())) {
      Bench bench(comm, spec, n, 64);
      for (std::uint64_t step = 0; step < 3; ++step) {
        fill_normal(bench.gradient, 100 * step + static_cast<std::uint64_t>(comm.rank()));
        bench.run(step);
        EXPECT_TRUE(bench.exchange->finite());
        expect_same_bits(comm, bench.gradient);
      }
    }
  }
}

TEST(Ring, SendsTheBytesOfTheFormula) {
  Communicator comm;
  const auto rank = static_cast<std::size_t>(comm.rank());
  std::uint64_t step = 0;
  for (const char* spec : kSpecs) {
    for (const std::size_t n : awkward_sizes(comm.size())) {
      Bench bench(comm, spec, n, 128);
      fill_normal(bench.gradient, 1);
      bench.run(step++);
      const std::uint64_t sent = bench.exchange->stats().sent_bytes;
      EXPECT_EQ(sent, ring_wire_bytes(bench.shape(), rank, *bench.codec)) << spec << ", " << n;
      std::uint64_t all_sent = sent, all_received = bench.exchange->stats().received_bytes;
      MPI_Allreduce(MPI_IN_PLACE, &all_sent, 1, MPI_UINT64_T, MPI_SUM, comm.handle());
      MPI_Allreduce(MPI_IN_PLACE, &all_received, 1, MPI_UINT64_T, MPI_SUM, comm.handle());
      EXPECT_EQ(all_sent, all_received);
    }
  }
}

TEST(Ring, FormulaByHand) {
  // 10 floats on 4 ranks: chunks of 3, 3, 2, 2; segments of 2: W = 2 x 16 + 12, the same, 16 + 8,
  // the same. Rank 0 sends each twice, less chunks 1 and 2, and 3 notices.
  const auto codec = make_codec(parse_codec_spec("none"));
  const RingShape shape{.elements = 10, .ranks = 4, .segment = 2};
  EXPECT_EQ(ring_wire_bytes(shape, 0, *codec), 2u * (44 + 44 + 24 + 24) - 44 - 24 + 48);
  EXPECT_EQ(ring_wire_bytes(shape, 3, *codec), 2u * (44 + 44 + 24 + 24) - 44 - 44 + 48);
  EXPECT_EQ(ring_wire_bytes({.elements = 0, .ranks = 4, .segment = 2}, 0, *codec), 0u);
  EXPECT_EQ(ring_wire_bytes({.elements = 9, .ranks = 1, .segment = 2}, 0, *codec), 0u);
}

// What went in is what came out plus what residuals took, summed over many steps.
TEST(Ring, FeedbackConservesTheSum) {
  Communicator comm;
  for (const char* spec : {"fp16", "q16", "q8", "q4", "q4:block=64"}) {
    const std::size_t n = 1003;
    constexpr int kSteps = 20;
    Bench bench(comm, spec, n, 64);
    std::vector<double> given(n), delivered(n);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      fill_normal(bench.gradient, 1000 * step + static_cast<std::uint64_t>(comm.rank()));
      const auto sum = sum_over_ranks(comm, bench.gradient);
      bench.run(step);
      for (std::size_t i = 0; i < n; ++i) {
        given[i] += sum[i];
        delivered[i] += static_cast<double>(bench.gradient[i]);
      }
    }
    if (comm.size() == 1) continue;  // nothing is encoded
    const auto kept = sum_over_ranks(comm, bench.residual);
    // Every addition of a ring of P ranks and every residual rounds to 2^-24 of at most 4 P.
    const double tolerance = kSteps * 3.0 * comm.size() * 0x1p-24 * 4.0 * comm.size();
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(given[i], delivered[i] + kept[i], tolerance) << spec << " at " << i;
      if (std::abs(given[i] - delivered[i] - kept[i]) > tolerance) break;
    }
  }
}

// Without feedback the loss of a step is within the sum of the sites' bounds.
TEST(Ring, WithoutFeedbackTheLossIsBounded) {
  Communicator comm;
  for (const auto& [spec, levels] : {std::pair{"q16:ef=off", 32767.0},
                                     std::pair{"q8:ef=off", 127.0}, std::pair{"q4:ef=off", 7.0}}) {
    const std::size_t n = 4099;
    Bench bench(comm, spec, n, 2048);
    for (std::size_t i = 0; i < n; ++i) bench.gradient[i] = integer_value(comm.rank(), i);
    const auto sum = sum_over_ranks(comm, bench.gradient);
    bench.run(0);
    // The partial sum of k ranks is at most 125 k and its coding errs by half a bin of that; what
    // was dropped on the way widens the next bins a little.
    double bound = 0.0;
    if (comm.size() > 1) {
      for (int k = 1; k <= comm.size(); ++k) bound += (125.0 * k + bound) / levels / 2 * 1.001;
    }
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_LE(std::abs(sum[i] - static_cast<double>(bench.gradient[i])), bound + 1e-3) << spec;
      if (std::abs(sum[i] - static_cast<double>(bench.gradient[i])) > bound + 1e-3) break;
    }
  }
}

TEST(Ring, SampledErrorIsThatOfTheCodec) {
  Communicator comm;
  if (comm.size() == 1) return;
  for (const auto& [spec, low, high] :
       {std::tuple{"q8", 0.003, 0.02}, std::tuple{"q8:ef=off", 0.003, 0.02},
        std::tuple{"q4", 0.05, 0.4}, std::tuple{"fp16", 0.0001, 0.0005}}) {
    Bench bench(comm, spec, 50'000, 2048);
    fill_normal(bench.gradient, 3 + static_cast<std::uint64_t>(comm.rank()));
    bench.run(0);
    const ExchangeStats& stats = bench.exchange->stats();
    const double error = std::sqrt(stats.sampled_error_squares / stats.sampled_value_squares);
    EXPECT_GT(error, low) << spec;
    EXPECT_LT(error, high) << spec;
  }
}

class NotFinite : public testing::TestWithParam<float> {};

// One bad value on one rank: all ranks know, nobody's residual is spoilt, and what the other ranks
// gave is conserved when the delivered sum is put back.
TEST_P(NotFinite, IsSeenByAllAndLosesNothing) {
  Communicator comm;
  for (const char* spec : {"none", "fp16", "q8", "q4:block=64"}) {
    for (int culprit = 0; culprit < comm.size(); ++culprit) {
      const std::size_t n = 1003;
      Bench bench(comm, spec, n, 64);
      fill_normal(bench.gradient, static_cast<std::uint64_t>(comm.rank()));
      bench.run(0);
      EXPECT_TRUE(bench.exchange->finite());
      const bool has_feedback = comm.size() > 1 && !bench.residual.empty();
      const auto residual_before = sum_over_ranks(comm, bench.residual);

      fill_normal(bench.gradient, 50 + static_cast<std::uint64_t>(comm.rank()));
      const std::size_t bad = n / 2;
      auto counted = bench.gradient;
      if (comm.rank() == culprit) {
        bench.gradient[bad] = GetParam();
        // The whole segment of the culprit counts as zeros. Which one that is: cut as the ring
        // cuts.
        const RingShape shape = bench.shape();
        for (std::size_t c = 0; c < shape.ranks; ++c) {
          for (std::size_t at = 0; at < shape.chunk_size(c); at += shape.segment) {
            const std::size_t begin = shape.chunk_begin(c) + at;
            const std::size_t end = begin + std::min(shape.segment, shape.chunk_size(c) - at);
            if (bad < begin || bad >= end) continue;
            for (std::size_t i = begin; i < end; ++i) counted[i] = 0.0f;
          }
        }
      }
      const auto given = sum_over_ranks(comm, counted);
      bench.run(1);
      EXPECT_FALSE(bench.exchange->finite()) << spec << ", rank " << culprit;
      if (comm.size() > 1) {
        for (const float v : bench.gradient) EXPECT_TRUE(std::isfinite(v));
        expect_same_bits(comm, bench.gradient);
      }
      bench.exchange->put_back_delivered();
      if (!has_feedback) continue;
      const auto residual_after = sum_over_ranks(comm, bench.residual);
      const double tolerance = 6.0 * comm.size() * 0x1p-24 * 8.0 * comm.size();
      for (std::size_t i = 0; i < n; ++i) {
        EXPECT_NEAR(residual_after[i], residual_before[i] + given[i], tolerance)
            << spec << " " << i;
      }
      // And the next step is an ordinary one.
      fill_normal(bench.gradient, 99);
      bench.run(2);
      EXPECT_TRUE(bench.exchange->finite());
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Values, NotFinite,
                         testing::Values(std::numeric_limits<float>::quiet_NaN(),
                                         std::numeric_limits<float>::infinity(),
                                         -std::numeric_limits<float>::infinity()));

TEST(Ring, ASumThatOverflowsIsNotFinite) {
  Communicator comm;
  if (comm.size() < 2) return;
  Bench bench(comm, "none", 100, 64);
  for (float& v : bench.gradient) v = 3e38f;
  bench.run(0);
  EXPECT_FALSE(bench.exchange->finite());
}

// The same seed gives the same bits, whatever the timing of messages.
TEST(Ring, TimingDoesNotChangeTheBits) {
  Communicator comm;
  for (const char* spec : {"none", "q8", "q4:block=64"}) {
    const std::size_t n = 3001;
    std::vector<float> sums[2], residuals[2];
    for (int round = 0; round < 2; ++round) {
      Bench bench(comm, spec, n, 64);
      const CounterRng rng(5, RandomStream::test, static_cast<std::uint64_t>(comm.rank()));
      std::uint64_t looks = 0;
      for (std::uint64_t step = 0; step < 3; ++step) {
        fill_normal(bench.gradient, 10 * step + static_cast<std::uint64_t>(comm.rank()));
        bench.run(step, [&] {
          // In the second round rank 1 dawdles at random.
          if (round == 1 && comm.rank() == 1 % comm.size() && rng.below(8, looks++) == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(rng.below(500, looks)));
          }
        });
      }
      sums[round] = bench.gradient;
      residuals[round] = bench.residual;
    }
    EXPECT_EQ(sums[0], sums[1]) << spec;
    EXPECT_EQ(residuals[0], residuals[1]) << spec;
  }
}

// Several exchanges at once, driven in different orders on different ranks.
TEST(Ring, SeveralBucketsAtOnce) {
  Communicator comm;
  std::vector<std::unique_ptr<Bench>> benches;
  const char* const specs[] = {"none", "q8", "none", "fp16"};
  const std::size_t sizes[] = {1000, 0, 3, 5000};
  for (std::uint32_t b = 0; b < 4; ++b) {
    benches.push_back(std::make_unique<Bench>(comm, specs[b], sizes[b], 64, b));
  }
  for (std::uint64_t step = 0; step < 5; ++step) {
    for (auto& bench : benches) {
      for (std::size_t i = 0; i < bench->gradient.size(); ++i) {
        bench->gradient[i] = integer_value(comm.rank(), i);
      }
      bench->exchange->post_receives(bench->buffers, step);
    }
    const auto turn = static_cast<std::size_t>(comm.rank());
    bool all_done = false;
    for (std::size_t look = 0; !all_done; ++look) {
      if (look < 4) benches[(look + turn) % 4]->exchange->start();
      all_done = look >= 4;
      for (auto& bench : benches) {
        bench->exchange->progress();
        all_done = all_done && bench->exchange->done();
      }
    }
    for (const std::size_t b : {std::size_t{0}, std::size_t{2}}) {
      for (std::size_t i = 0; i < benches[b]->gradient.size(); ++i) {
        float want = 0.0f;
        for (int rank = 0; rank < comm.size(); ++rank) want += integer_value(rank, i);
        EXPECT_EQ(benches[b]->gradient[i], want);
      }
    }
    for (auto& bench : benches) expect_same_bits(comm, bench->gradient);
  }
}

}  // namespace
}  // namespace dp
