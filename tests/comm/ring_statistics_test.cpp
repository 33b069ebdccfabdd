// What a run of many exchanges must not do: drift.
#include <gtest/gtest.h>

#include <cmath>

#include "exchange_fixture.hpp"

namespace dp {
namespace {

using namespace testing_support;

constexpr int kExchanges = 1000;

// Feedback off, symmetric input of zero mean: the mean error over values and exchanges is zero
// within its standard error.
TEST(RingStatistics, DenseQuantisersHaveNoBias) {
  Communicator comm;
  for (const char* spec : {"q8:block=64,ef=off", "q4:block=64,ef=off", "q16:block=64,ef=off"}) {
    const std::size_t n = 64 * static_cast<std::size_t>(comm.size());
    Bench bench(comm, spec, n, 64);
    double sum = 0.0, squares = 0.0;
    for (std::uint64_t step = 0; step < kExchanges; ++step) {
      fill_normal(bench.gradient, step * 64 + static_cast<std::uint64_t>(comm.rank()));
      const auto exact = sum_over_ranks(comm, bench.gradient);
      bench.run(step);
      for (std::size_t i = 0; i < n; ++i) {
        const double error = static_cast<double>(bench.gradient[i]) - exact[i];
        sum += error;
        squares += error * error;
      }
    }
    // The input is fixed by its seeds, so this either holds or not; truncation, the usual fault,
    // errs by half a bin, which is hundreds of standard errors.
    EXPECT_LE(std::abs(sum), 4.0 * std::sqrt(squares)) << spec;
    EXPECT_GT(squares, 0.0);
  }
}

// Feedback on, any fixed input: the mean delivered sum is off by no more than the residuals / n.
TEST(RingStatistics, FeedbackBoundsTheMeanError) {
  Communicator comm;
  for (const char* spec : {"q8:block=64", "q4:block=64", "fp16"}) {
    const std::size_t n = 300;
    Bench bench(comm, spec, n, 64);
    std::vector<float> input(n);
    fill_normal(input, static_cast<std::uint64_t>(comm.rank()));
    const auto exact = sum_over_ranks(comm, input);
    std::vector<double> delivered(n);
    double first_norm = 0.0, last_norm = 0.0;
    for (std::uint64_t step = 0; step < kExchanges; ++step) {
      bench.gradient = input;
      bench.run(step);
      for (std::size_t i = 0; i < n; ++i) delivered[i] += static_cast<double>(bench.gradient[i]);
      if (step != 100 && step + 1 != kExchanges) continue;
      double norm = 0.0;
      for (const double r : sum_over_ranks(comm, bench.residual)) norm += r * r;
      (step == 100 ? first_norm : last_norm) = std::sqrt(norm);
    }
    double error = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      error += std::pow(delivered[i] / kExchanges - exact[i], 2);
    }
    // Rounding of fp32 sums: 2^-24 of the values, each of about P additions.
    const double rounding = comm.size() * 0x1p-22 * std::sqrt(static_cast<double>(n));
    EXPECT_LE(std::sqrt(error), last_norm / kExchanges + rounding) << spec;
    // Residuals stay where they are: a contraction, not a drift.
    EXPECT_LE(last_norm, 4.0 * first_norm + 1e-6) << spec;
  }
}

}  // namespace
}  // namespace dp
