// The ring's own promises, beside those of all topologies (topology_test.cpp): how much is lost
// without feedback, what a sampled encode says, several buckets at once.
#include "comm/topologies/ring.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/comm/exchange/exchange_fixture.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

using namespace testing_support;

float integer_value(int rank, std::size_t i) {
  return static_cast<float>(static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13) % 251) -
                            125);
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
  DP_NEEDS_RANKS(comm, 2);
  for (const auto& [spec, low, high] :
       {std::tuple{"q8", 0.003, 0.02}, std::tuple{"q8:ef=off", 0.003, 0.02},
        std::tuple{"q4", 0.05, 0.4}, std::tuple{"fp16", 0.0001, 0.0005}}) {
    Bench bench(comm, spec, 50'000, 2048);
    fill_normal(bench.gradient, 3 + static_cast<std::uint64_t>(comm.rank()));
    bench.run(0);
    const ExchangeStats& stats = bench.exchange->stats();
    const double error = std::sqrt(stats.sampled.error_squares / stats.sampled.value_squares);
    EXPECT_GT(error, low) << spec;
    EXPECT_LT(error, high) << spec;
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
