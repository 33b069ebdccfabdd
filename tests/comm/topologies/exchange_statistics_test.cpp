// What a run of many exchanges must not do: drift (I4). Up to 4 ranks with every codec on a ring
// and direct, and with a coarse and a fine one on every topology. More ranks share few processors
// here, so 8 go with one codec of each kind on the topologies that are meant for them, and 16 on a
// ring, where errors add up most, and with two of them on direct.
//
// The cases of a test run at the same time, each with a bucket of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/comm/exchange/exchange_fixture.hpp"

namespace dp {
namespace {

using namespace testing_support;

constexpr std::size_t kExchanges = 1000;

// By topology, so that the time that a test may take is that of one.
class ExchangeStatistics : public testing::TestWithParam<std::string_view> {};

bool is_sparse(const CodecSpec& spec) {
  return spec.settings.contains("ratio") || spec.settings.contains("alpha");
}

// The specs for a topology. With feedback: every codec that has it. Without: those that round at
// random, and the dense ones.
std::vector<std::string> specs_for(std::string_view topology, int p, bool has_feedback) {
  std::vector<std::string> specs;
  const bool is_for_many = topology == "ring" || topology == "direct";
  if (p > 8 && !is_for_many) return specs;
  if (p > 4 && !is_for_many && topology != "hierarchical") return specs;
  for (const std::string& text : small_specs()) {
    const CodecSpec spec = parse_codec_spec(text);
    const bool is_random = !spec.is_biased();
    if (make_codec(spec)->is_lossless()) continue;
    if (has_feedback ? is_random : !is_random && is_sparse(spec)) continue;
    // On a ring the variance of values that are scaled up is multiplied P times (randk.hpp).
    if (is_random && is_sparse(spec) && topology != "direct") continue;
    bool is_taken = p <= 4 && is_for_many;
    if (is_random) {
      is_taken = is_taken || spec.name == "ternary" || is_sparse(spec);
    } else {
      is_taken = is_taken || spec.name == "q4" || spec.name == (p <= 4 ? "q8" : "fp8");
    }
    if (p > 8 && (has_feedback || topology == "direct")) {
      is_taken = is_taken && (spec.name == "q4" || is_sparse(spec));
    }
    if (is_taken) specs.push_back(has_feedback || is_random ? text : with_key(text, "ef", "off"));
  }
  return specs;
}

// Two ranks a host.
std::vector<int> pairs(const Communicator& comm) {
  std::vector<int> hosts;
  for (int rank = 0; rank < comm.size(); ++rank) hosts.push_back(rank / 2);
  return hosts;
}

// 4 bits, one scale per segment, cut off towards zero: what a codec must not do.
class Truncating final : public Codec {
 public:
  Truncating() : Codec(parse_codec_spec("q4:block=64,ef=off")) {}
  [[nodiscard]] bool is_lossless() const override { return false; }
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const override { return 4 * n; }
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const override {
    return 4 * n;
  }
  [[nodiscard]] double contraction() const override { return 0.5; }
  EncodeResult encode(std::span<const float> partial, float*, std::span<std::byte> payload,
                      const EncodeContext&) const override {
    float largest = 1e-30f;
    for (const float v : partial) largest = std::max(largest, std::abs(v));
    std::vector<float> out;
    for (const float v : partial) out.push_back(std::trunc(v / largest * 7.0f) * largest / 7.0f);
    std::memcpy(payload.data(), out.data(), 4 * out.size());
    return {4 * out.size(), true};
  }
  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    std::memcpy(out.data(), payload.data(), payload.size());
  }
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override {
    std::vector<float> values(out.size());
    decode(payload, values);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += values[i];
  }
};

// Sums over the errors (delivered - exact) of all values and exchanges.
struct Errors {
  double sum = 0.0, squares = 0.0, exact_squares = 0.0;
  double outward = 0.0;  // the sum of errors away from zero, less those towards it
  double count = 0.0;

  void add(double error, double exact) {
    sum += error;
    squares += error * error;
    exact_squares += exact * exact;
    outward += std::copysign(error, error * exact);
    count += 1.0;
  }
  // Mean errors in root mean squares of one.
  [[nodiscard]] double mean() const { return sum / std::sqrt(squares * count); }
  [[nodiscard]] double mean_outward() const { return outward / std::sqrt(squares * count); }
};

// Both bounds are in root mean squares of the error. Cut off towards zero, values shrink by 0.78
// and more, as the last two cases show (0.87 is half a bin in bins that are evenly filled).
// Rounding to the nearest level shrinks normal values a little, those in the bin around zero (q4:
// 0.02, fp8: 0.03, q4n: 0.08), and much where there are hardly more levels than that (q2: 0.36,
// sign: 0.52).
constexpr double kMostShrinking = 0.65, kMostShrinkingOfFine = 0.2;

// Feedback off, symmetric input of zero mean: the mean error over values and exchanges is zero
// within its standard error, so is, at random, that away from zero; and to the nearest value it is
// far from what cutting off would make of it.
TEST_P(ExchangeStatistics, CodecsHaveNoBias) {
  Communicator comm;
  const std::string_view topology = GetParam();
  const std::vector<std::string> specs = specs_for(topology, comm.size(), false);
  if (specs.empty()) GTEST_SKIP() << "other topologies are looked at with so many ranks";
  std::vector<std::string> names = specs;
  if (comm.size() <= 4 && (topology == "ring" || topology == "direct")) {
    names.emplace_back("cut off towards zero");
  }
  const std::size_t n = 64 * static_cast<std::size_t>(comm.size());
  // Without feedback no exchange depends on an earlier one. Ranks share processors, of which a turn
  // costs more than a message: so several of each case run at once; fewer where there are many
  // cases, as MPI looks for the receive of a message among all that are posted.
  const std::size_t at_once = names.size() <= 6 ? 25 : 5;
  static_assert(kExchanges % 25 == 0);
  std::vector<std::unique_ptr<Bench>> benches;  // at_once of each case
  for (std::size_t b = 0; b < names.size() * at_once; ++b) {
    const std::size_t c = b / at_once;
    auto codec = c < specs.size() ? make_codec(parse_codec_spec(specs[c]))
                                  : std::unique_ptr<Codec>(std::make_unique<Truncating>());
    benches.push_back(std::make_unique<Bench>(
        comm, std::move(codec), n, 64, static_cast<std::uint32_t>(b), topology, pairs(comm)));
  }
  comm.barrier();

  std::vector<Errors> errors(names.size());
  std::vector<std::vector<float>> values(at_once, std::vector<float>(n));
  std::vector<std::vector<double>> exact(at_once);
  for (std::uint64_t step = 0; step < kExchanges / at_once; ++step) {
    for (std::size_t k = 0; k < at_once; ++k) {
      fill_normal(values[k], (step * at_once + k) * 64 + static_cast<std::uint64_t>(comm.rank()));
      exact[k] = sum_over_ranks(comm, values[k]);
    }
    for (std::size_t b = 0; b < benches.size(); ++b) benches[b]->gradient = values[b % at_once];
    run_together(benches, step);
    for (std::size_t b = 0; b < benches.size(); ++b) {
      const std::vector<double>& sum = exact[b % at_once];
      for (std::size_t i = 0; i < n; ++i) {
        errors[b / at_once].add(static_cast<double>(benches[b]->gradient[i]) - sum[i], sum[i]);
      }
    }
  }
  // The input is fixed by its seeds, so this either holds or not. Cut off downwards, errors would
  // be half a bin, hundreds of standard errors.
  const double most = 4.0 / std::sqrt(errors[0].count);
  for (std::size_t c = 0; c < names.size(); ++c) {
    SCOPED_TRACE(names[c]);
    const Errors& e = errors[c];
    if (c >= specs.size()) {
      EXPECT_LT(e.mean_outward(), -kMostShrinking);
      continue;
    }
    // With two ranks on one host nothing is encoded: what there is, is rounding of fp32.
    const bool is_exact = topology == "hierarchical" && comm.size() == 2;
    EXPECT_EQ(e.squares < 1e-6, is_exact);
    EXPECT_LE(std::abs(e.mean()), most);
    if (!benches[c * at_once]->codec->spec().is_biased() || is_exact) {
      EXPECT_LE(std::abs(e.mean_outward()), most);
    } else {
      const bool is_fine = e.squares < e.exact_squares / 9.0;
      EXPECT_LE(std::abs(e.mean_outward()), is_fine ? kMostShrinkingOfFine : kMostShrinking);
    }
  }
}

// Feedback on, any fixed input: the mean delivered sum is off by no more than the residuals / n.
TEST_P(ExchangeStatistics, FeedbackBoundsTheMeanError) {
  Communicator comm;
  const std::string_view topology = GetParam();
  const std::vector<std::string> specs = specs_for(topology, comm.size(), true);
  if (specs.empty()) GTEST_SKIP() << "other topologies are looked at with so many ranks";
  // One after the other, so fewer where that takes long. A norm is taken in the middle, too.
  const std::uint64_t exchanges = comm.size() <= 8 ? kExchanges : 250;
  constexpr std::uint64_t kMiddle = 100;
  const std::size_t n = 64 * static_cast<std::size_t>(comm.size());
  std::vector<std::unique_ptr<Bench>> benches;
  for (const std::string& spec : specs) {
    benches.push_back(std::make_unique<Bench>(comm, make_codec(parse_codec_spec(spec)), n, 64,
                                              static_cast<std::uint32_t>(benches.size()), topology,
                                              pairs(comm)));
  }
  comm.barrier();
  std::vector<float> input(n);
  fill_normal(input, static_cast<std::uint64_t>(comm.rank()));
  const auto exact = sum_over_ranks(comm, input);
  std::vector<std::vector<double>> delivered(benches.size(), std::vector<double>(n));
  std::vector<double> first_norm(benches.size()), last_norm(benches.size());
  for (std::uint64_t step = 0; step < exchanges; ++step) {
    for (const auto& bench : benches) bench->gradient = input;
    run_together(benches, step);
    const bool is_last = step + 1 == exchanges;
    for (std::size_t b = 0; b < benches.size(); ++b) {
      for (std::size_t i = 0; i < n; ++i) {
        delivered[b][i] += static_cast<double>(benches[b]->gradient[i]);
      }
      if (step != kMiddle && !is_last) continue;
      double norm = 0.0;
      for (const double r : sum_over_ranks(comm, benches[b]->residual)) norm += r * r;
      (is_last ? last_norm : first_norm)[b] = std::sqrt(norm);
    }
  }
  for (std::size_t b = 0; b < benches.size(); ++b) {
    double error = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      error += std::pow(delivered[b][i] / static_cast<double>(exchanges) - exact[i], 2);
    }
    // Rounding of fp32 sums: 2^-24 of the values, each of about P additions.
    const double rounding = comm.size() * 0x1p-22 * std::sqrt(static_cast<double>(n));
    EXPECT_LE(std::sqrt(error), last_norm[b] / static_cast<double>(exchanges) + rounding)
        << specs[b];
    // Residuals stay where they are: a contraction, not a drift.
    EXPECT_LE(last_norm[b], 4.0 * first_norm[b] + 1e-6) << specs[b];
  }
}

std::vector<std::string_view> topology_names() {
  std::vector<std::string_view> names;
  for (const Topology& topology : topology_list()) names.push_back(topology.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Topologies, ExchangeStatistics, testing::ValuesIn(topology_names()),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace dp
