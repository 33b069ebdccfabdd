// What a run of many exchanges must not do: drift. Up to 4 ranks on every topology with a coarse
// codec and a fine one, and on a ring and direct with all dense ones. More ranks share few
// processors here, so 8 go with q4 on the topologies that are meant for them, and 16 with q4 on a
// ring, where errors add up most, and on direct.
#include <gtest/gtest.h>

#include <cmath>

#include "exchange_fixture.hpp"

namespace dp {
namespace {

using namespace testing_support;

constexpr int kExchanges = 1000;

struct Case {
  std::string topology;
  std::string spec;
};

// Dense codecs, with or without feedback, on the topologies.
std::vector<Case> cases(const Communicator& comm, bool has_feedback) {
  std::vector<Case> all;
  for (const Topology& topology : topology_list()) {
    const std::string name(topology.name);
    const bool is_for_many = name == "ring" || name == "direct";
    if (comm.size() > 8 && !is_for_many) continue;
    if (comm.size() > 4 && !is_for_many && name != "hierarchical") continue;
    std::vector<std::string> specs = {"q4:block=64"};
    if (comm.size() < 8) specs.push_back("q8:block=64");
    if (comm.size() < 8 && is_for_many) {
      for (const char* spec : {"fp16", "bf16", "q16:block=64", "q2:block=64", "q8n:block=64",
                               "q4n:block=64", "sign:block=64", "ternary:block=64"}) {
        specs.push_back(spec);
      }
    }
    for (std::string spec : specs) {
      if (!has_feedback) spec += spec.find(':') == std::string::npos ? ":ef=off" : ",ef=off";
      all.push_back({name, spec});
    }
    if (!has_feedback && comm.size() < 8) all.push_back({name, "q4:block=64,round=stochastic"});
  }
  return all;
}

// Two ranks a host.
std::vector<int> pairs(const Communicator& comm) {
  std::vector<int> hosts;
  for (int rank = 0; rank < comm.size(); ++rank) hosts.push_back(rank / 2);
  return hosts;
}

// Feedback off, symmetric input of zero mean: the mean error over values and exchanges is zero
// within its standard error.
TEST(ExchangeStatistics, DenseQuantisersHaveNoBias) {
  Communicator comm;
  for (const auto& [topology, spec] : cases(comm, false)) {
    const std::size_t n = 64 * static_cast<std::size_t>(comm.size());
    Bench bench(comm, spec, n, 64, 0, topology, pairs(comm));
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
    // With two ranks on one host nothing is encoded.
    const bool is_exact = topology == "hierarchical" && comm.size() == 2;
    // The input is fixed by its seeds, so this either holds or not; truncation, the usual fault,
    // errs by half a bin, which is hundreds of standard errors.
    const double most = is_exact ? 1e-3 : 4.0 * std::sqrt(squares);
    EXPECT_LE(std::abs(sum), most) << topology << ", " << spec;
    EXPECT_EQ(squares < 1e-6, is_exact) << topology << ", " << spec;
  }
}

// Feedback on, any fixed input: the mean delivered sum is off by no more than the residuals / n.
TEST(ExchangeStatistics, FeedbackBoundsTheMeanError) {
  Communicator comm;
  for (const auto& [topology, spec] : cases(comm, true)) {
    const std::size_t n = 300;
    Bench bench(comm, spec, n, 64, 0, topology, pairs(comm));
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
    EXPECT_LE(std::sqrt(error), last_norm / kExchanges + rounding) << topology << ", " << spec;
    // Residuals stay where they are: a contraction, not a drift.
    EXPECT_LE(last_norm, 4.0 * first_norm + 1e-6) << topology << ", " << spec;
  }
}

}  // namespace
}  // namespace dp
