// What every topology promises with every codec: exact sums of integers, the same bits on all
// ranks, the bytes of its formula, conservation with feedback, input that is not finite seen by all
// and nothing lost, independence of timing.
//
// Every codec of the list goes through every topology, in its canonical form and with small blocks;
// segments are of 64 floats, so that a few hundred floats make many segments and several groups.
// Not every size is tried with every codec: sizes that matter to the cutting (0 to 3 P + 1) go with
// three codecs, and all codecs go with three sizes.
#include "comm/topology.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "comm/hierarchical.hpp"
#include "exchange_fixture.hpp"

namespace dp {
namespace {

using namespace testing_support;

constexpr std::size_t kSegment = 64;

struct Case {
  std::string topology;
  std::vector<int> hosts;
};

// All topologies; the hierarchical one with two ranks a host, hosts in turn, and one host.
std::vector<Case> all_cases(int ranks) {
  std::vector<Case> cases;
  for (const Topology& topology : topology_list()) {
    if (topology.name != "hierarchical") {
      cases.push_back({std::string(topology.name), {}});
      continue;
    }
    std::vector<int> pairs, in_turn;
    for (int rank = 0; rank < ranks; ++rank) {
      pairs.push_back(rank / 2);
      in_turn.push_back(rank % 2);
    }
    cases.push_back({"hierarchical", pairs});
    cases.push_back({"hierarchical", in_turn});
    cases.push_back({"hierarchical", std::vector<int>(static_cast<std::size_t>(ranks), 0)});
  }
  return cases;
}

bool is_one_host(const Case& c) {
  return !c.hosts.empty() && std::count(c.hosts.begin(), c.hosts.end(), c.hosts[0]) ==
                                 static_cast<std::ptrdiff_t>(c.hosts.size());
}

std::string text_of(const Case& c) {
  std::string text = c.topology;
  for (const int host : c.hosts) text += " " + std::to_string(host);
  return text;
}

// Every codec that writes segments: as it is, with small blocks, without feedback.
std::vector<std::string> all_specs() {
  std::vector<std::string> specs;
  for (const CodecInfo& info : codec_list()) {
    if (info.is_exchange) continue;
    const std::string name(info.name);
    specs.push_back(name);
    if (info.find("block") != nullptr) specs.push_back(name + ":block=64");
    if (info.can_feedback()) specs.push_back(name + ":ef=off");
    if (info.find("ratio") != nullptr) specs.push_back(name + ":ratio=0.1");
  }
  return specs;
}

// Normal numbers; or the worst a block can hold: zeros, denormals and one value far above all.
void fill(std::vector<float>& values, std::uint64_t seed, bool is_awkward) {
  fill_normal(values, seed);
  if (!is_awkward) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 5 == 0) values[i] = 0.0f;
    if (i % 5 == 1) values[i] *= 1e-41f;
    if (i % 64 == 17) values[i] = 1e6f;
  }
}

std::uint64_t rank_seed(const Communicator& comm, std::uint64_t step) {
  return 100 * step + static_cast<std::uint64_t>(comm.rank());
}

TEST(Topology, SumsIntegersExactly) {
  Communicator comm;
  const auto p = static_cast<std::size_t>(comm.size());
  std::uint64_t step = 0;
  for (const Case& c : all_cases(comm.size())) {
    SCOPED_TRACE(text_of(c));
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, p - 1, p, p + 1, 3 * p + 1,
                                std::size_t{257}, std::size_t{5'003}}) {
      for (const std::size_t segment : {std::size_t{1}, std::size_t{3}, std::size_t{65536}}) {
        if (segment < 3 && n > 300) continue;  // thousands of messages
        Bench bench(comm, "none", n, segment, 0, c.topology, c.hosts);
        for (std::size_t i = 0; i < n; ++i) {
          bench.gradient[i] = static_cast<float>((i * 7 + std::size_t(comm.rank()) * 13) % 251);
        }
        bench.run(step++);
        EXPECT_TRUE(bench.exchange->finite());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i) {
          float want = 0.0f;
          for (std::size_t rank = 0; rank < p; ++rank) {
            want += static_cast<float>((i * 7 + rank * 13) % 251);
          }
          wrong += bench.gradient[i] == want ? 0 : 1;
        }
        EXPECT_EQ(wrong, 0u) << n << " in segments of " << segment;
      }
    }
  }
}

void check_bits_and_bytes(Communicator& comm, const Case& c, const std::string& spec,
                          std::size_t n) {
  SCOPED_TRACE(text_of(c) + ", " + spec + ", " + std::to_string(n));
  const auto rank = static_cast<std::size_t>(comm.rank());
  Bench bench(comm, spec, n, kSegment, 0, c.topology, c.hosts);
  for (std::uint64_t step = 0; step < 3; ++step) {
    fill(bench.gradient, rank_seed(comm, step), step == 1);
    bench.run(step);
    EXPECT_TRUE(bench.exchange->finite());
    expect_same_bits(comm, bench.gradient);
  }
  const ExchangeStats& stats = bench.exchange->stats();
  std::uint64_t counts[2] = {stats.sent_bytes, stats.received_bytes};
  MPI_Allreduce(MPI_IN_PLACE, counts, 2, MPI_UINT64_T, MPI_SUM, comm.handle());
  EXPECT_EQ(counts[0], counts[1]);
  if (!bench.codec->fixed_payload_bytes(kSegment)) return;
  const std::uint64_t want =
      find_topology(c.topology).wire_bytes(bench.shape(), c.hosts, rank, *bench.codec);
  EXPECT_EQ(stats.sent_bytes, 3 * want);
}

TEST(Topology, EveryCodecHasTheSameBitsAndTheBytesOfTheFormula) {
  Communicator comm;
  const auto p = static_cast<std::size_t>(comm.size());
  for (const Case& c : all_cases(comm.size())) {
    for (const std::string& spec : all_specs()) {
      for (const std::size_t n : {p + 1, 63 * p + 1, 3 * 64 * p + 1}) {
        check_bits_and_bytes(comm, c, spec, n);
      }
    }
  }
}

TEST(Topology, EverySizeHasTheSameBitsAndTheBytesOfTheFormula) {
  Communicator comm;
  const auto p = static_cast<std::size_t>(comm.size());
  for (const Case& c : all_cases(comm.size())) {
    for (const char* spec : {"fp16", "q8:block=64", "q4:block=8"}) {
      for (const std::size_t n :
           {std::size_t{0}, std::size_t{1}, p - 1, p, 2 * p + 1, std::size_t{63}, std::size_t{64},
            std::size_t{65}, 64 * p - 1, 64 * p + 1, 5 * 64 * p + 7}) {
        check_bits_and_bytes(comm, c, spec, n);
      }
    }
  }
}

// Payloads whose length the codec does not promise: fp32 and a few bytes more or less. The formula
// is asked about a twin that does promise.
class Ragged final : public Codec {
 public:
  explicit Ragged(bool is_fixed) : Codec(parse_codec_spec("none")), is_fixed_(is_fixed) {}
  [[nodiscard]] bool is_lossless() const override { return true; }
  [[nodiscard]] std::size_t max_payload_bytes(std::size_t n) const override { return 4 * n + 12; }
  [[nodiscard]] std::optional<std::size_t> fixed_payload_bytes(std::size_t n) const override {
    return is_fixed_ ? std::optional(bytes(n)) : std::nullopt;
  }
  [[nodiscard]] double contraction() const override { return 0.0; }
  EncodeResult encode(std::span<const float> partial, float*, std::span<std::byte> payload,
                      const EncodePlace&) const override {
    std::memset(payload.data(), 0, bytes(partial.size()));
    std::memcpy(payload.data(), partial.data(), partial.size_bytes());
    return {bytes(partial.size()), true};
  }
  void decode(std::span<const std::byte> payload, std::span<float> out) const override {
    EXPECT_EQ(payload.size(), bytes(out.size()));
    std::memcpy(out.data(), payload.data(), out.size_bytes());
  }
  void decode_add(std::span<const std::byte> payload, std::span<float> out) const override {
    std::vector<float> values(out.size());
    decode(payload, values);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += values[i];
  }

 private:
  static std::size_t bytes(std::size_t n) { return 4 * n + n % 13; }
  bool is_fixed_;
};

TEST(Topology, PayloadsOfVaryingLengthAndHeadersAreAllThatIsSent) {
  Communicator comm;
  const auto p = static_cast<std::size_t>(comm.size());
  const Ragged codec(false), twin(true);
  for (const Case& c : all_cases(comm.size())) {
    SCOPED_TRACE(text_of(c));
    for (const std::size_t n : {p + 1, 200 * p + 5}) {
      std::vector<float> gradient(n, 1.0f);
      const auto exchange = find_topology(c.topology)
                                .make({.communicator = &comm,
                                       .gradient = gradient,
                                       .codec = &codec,
                                       .segment = kSegment,
                                       .hosts = c.hosts});
      BufferSet buffers(exchange->needs());
      comm.barrier();
      exchange->post_receives(buffers, 0);
      exchange->start();
      while (!exchange->done()) exchange->progress();
      for (const float v : gradient) EXPECT_EQ(v, static_cast<float>(p));
      EXPECT_EQ(
          exchange->stats().sent_bytes,
          find_topology(c.topology)
              .wire_bytes({n, p, kSegment}, c.hosts, static_cast<std::size_t>(comm.rank()), twin));
    }
  }
}

// What went in is what came out plus what residuals took, summed over many steps.
TEST(Topology, FeedbackConservesTheSum) {
  Communicator comm;
  const std::size_t n = 403;
  constexpr int kSteps = 8;
  for (const Case& c : all_cases(comm.size())) {
    for (const std::string& spec : all_specs()) {
      if (!parse_codec_spec(spec).feedback) continue;
      SCOPED_TRACE(text_of(c) + ", " + spec);
      Bench bench(comm, spec, n, kSegment, 0, c.topology, c.hosts);
      std::vector<double> given(n), delivered(n);
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        fill_normal(bench.gradient, rank_seed(comm, step));
        const auto sum = sum_over_ranks(comm, bench.gradient);
        bench.run(step);
        for (std::size_t i = 0; i < n; ++i) {
          given[i] += sum[i];
          delivered[i] += static_cast<double>(bench.gradient[i]);
        }
      }
      if (comm.size() == 1) continue;  // nothing is encoded
      const auto kept = sum_over_ranks(comm, bench.residual);
      // Every addition of P ranks and every residual rounds to 2^-24 of the largest value there is:
      // 4 P in a step, and as much from each earlier step where a codec sends little.
      const double tolerance = kSteps * 3.0 * comm.size() * 0x1p-24 * 4.0 * comm.size() * kSteps;
      double worst = 0.0;
      for (std::size_t i = 0; i < n; ++i) {
        worst = std::max(worst, std::abs(given[i] - delivered[i] - kept[i]));
      }
      EXPECT_LE(worst, tolerance);
    }
  }
}

// The chunk shape that a topology cuts the bucket by.
ExchangeShape cut_of(const Case& c, const Bench& bench) {
  const ExchangeShape shape = bench.shape();
  if (c.topology == "tree" || c.topology == "ps") return shape.whole();
  if (c.topology != "hierarchical") return shape;
  return hierarchical_plan(shape, c.hosts, 0, 1).shape;
}

// One bad value on one rank: all ranks know, nobody's residual is spoilt, and what the other ranks
// gave is conserved when the delivered sum is put back.
TEST(Topology, InputThatIsNotFiniteIsSeenByAllAndLosesNothing) {
  Communicator comm;
  if (comm.size() == 1) return;
  const std::size_t n = 703;
  for (const Case& c : all_cases(comm.size())) {
    for (const char* spec : {"none", "fp16", "q8:block=64", "topk:ratio=0.1", "sign:block=64"}) {
      for (int culprit = 0; culprit < comm.size(); ++culprit) {
        const float bad_values[] = {std::numeric_limits<float>::quiet_NaN(),
                                    std::numeric_limits<float>::infinity(),
                                    -std::numeric_limits<float>::infinity()};
        const float bad_value = bad_values[culprit % 3];
        const std::size_t bad = culprit % 2 == 0 ? n / 2 : n - 1;
        SCOPED_TRACE(text_of(c) + ", " + spec + ", rank " + std::to_string(culprit));
        Bench bench(comm, spec, n, kSegment, 0, c.topology, c.hosts);
        fill_normal(bench.gradient, rank_seed(comm, 0));
        bench.run(0);
        EXPECT_TRUE(bench.exchange->finite());
        const auto residual_before = sum_over_ranks(comm, bench.residual);

        fill_normal(bench.gradient, rank_seed(comm, 1));
        auto counted = bench.gradient;
        if (comm.rank() == culprit) {
          bench.gradient[bad] = bad_value;
          // The whole segment of the culprit counts as zeros.
          const ExchangePlan plan(cut_of(c, bench));
          for (const auto& [begin, size] : plan.segments) {
            if (bad < begin || bad >= begin + size) continue;
            std::fill_n(counted.begin() + static_cast<std::ptrdiff_t>(begin), size, 0.0f);
          }
        }
        const auto given = sum_over_ranks(comm, counted);
        bench.run(1);
        EXPECT_FALSE(bench.exchange->finite());
        for (const float v : bench.gradient) EXPECT_TRUE(std::isfinite(v));
        expect_same_bits(comm, bench.gradient);
        if (bench.residual.empty()) {
          for (std::size_t i = 0; i < n; ++i) {
            EXPECT_NEAR(static_cast<double>(bench.gradient[i]), given[i], 1e-4);
          }
          continue;
        }
        // With one host nothing is encoded, so residuals have given nothing.
        if (is_one_host(c)) continue;
        bench.exchange->put_back_delivered();
        const auto residual_after = sum_over_ranks(comm, bench.residual);
        const double tolerance = 6.0 * comm.size() * 0x1p-24 * 8.0 * comm.size();
        double worst = 0.0;
        for (std::size_t i = 0; i < n; ++i) {
          worst = std::max(worst, std::abs(residual_after[i] - residual_before[i] - given[i]));
        }
        EXPECT_LE(worst, tolerance);
        // And the next step is an ordinary one.
        fill_normal(bench.gradient, 99);
        bench.run(2);
        EXPECT_TRUE(bench.exchange->finite());
      }
    }
  }
}

TEST(Topology, ASumThatOverflowsIsNotFinite) {
  Communicator comm;
  if (comm.size() < 2) return;
  for (const Case& c : all_cases(comm.size())) {
    Bench bench(comm, "none", 100, kSegment, 0, c.topology, c.hosts);
    for (float& v : bench.gradient) v = 3e38f;
    bench.run(0);
    EXPECT_FALSE(bench.exchange->finite()) << text_of(c);
    expect_same_bits(comm, bench.gradient);
  }
}

// The same seed gives the same bits, whatever the timing of messages.
TEST(Topology, TimingDoesNotChangeTheBits) {
  Communicator comm;
  const std::size_t n = 1501;
  for (const Case& c : all_cases(comm.size())) {
    for (const char* spec : {"none", "q4:block=64", "topk:ratio=0.1", "q8:round=stochastic"}) {
      SCOPED_TRACE(text_of(c) + ", " + spec);
      std::vector<float> sums[3], residuals[3];
      for (int round = 0; round < 3; ++round) {
        Bench bench(comm, spec, n, kSegment, 0, c.topology, c.hosts);
        const CounterRng rng(5, RandomStream::test, static_cast<std::uint64_t>(comm.rank()));
        // In the second round rank 1 dawdles at random, in the third all but rank 0.
        const bool dawdles =
            (round == 1 && comm.rank() == 1 % comm.size()) || (round == 2 && comm.rank() > 0);
        std::uint64_t looks = 0;
        for (std::uint64_t step = 0; step < 2; ++step) {
          fill_normal(bench.gradient, rank_seed(comm, step));
          bench.run(step, [&] {
            if (dawdles && rng.below(16, looks++) == 0) {
              std::this_thread::sleep_for(std::chrono::microseconds(rng.below(200, looks)));
            }
          });
        }
        sums[round] = bench.gradient;
        residuals[round] = bench.residual;
      }
      EXPECT_EQ(sums[0], sums[1]);
      EXPECT_EQ(sums[0], sums[2]);
      EXPECT_EQ(residuals[0], residuals[1]);
      EXPECT_EQ(residuals[0], residuals[2]);
    }
  }
}

// What a value costs, by hand: 10 floats on 4 ranks in segments of 2, in fp32. Chunks of 3, 3, 2, 2
// floats are W = 44, 44, 24, 24 bytes; the whole bucket, five segments, 120; notices 48.
TEST(Topology, FormulasByHand) {
  const auto codec = make_codec(parse_codec_spec("none"));
  const ExchangeShape shape{.elements = 10, .ranks = 4, .segment = 2};
  const auto bytes = [&](const char* topology, std::size_t rank, std::vector<int> hosts = {}) {
    return find_topology(topology).wire_bytes(shape, hosts, rank, *codec);
  };
  EXPECT_EQ(bytes("ring", 0), 2u * (44 + 44 + 24 + 24) - 44 - 24 + 48);
  EXPECT_EQ(bytes("direct", 0), 44u + 24 + 24 + 3 * 44 + 48);
  EXPECT_EQ(bytes("direct", 3), 44u + 44 + 24 + 3 * 24 + 48);
  EXPECT_EQ(bytes("tree", 0), 2u * 120 + 48);  // children 1 and 2
  EXPECT_EQ(bytes("tree", 1), 120u + 48);
  EXPECT_EQ(bytes("tree", 2), 2u * 120 + 48);  // child 3, parent 0
  EXPECT_EQ(bytes("tree", 3), 120u + 48);
  EXPECT_EQ(bytes("ps", 0), 3u * 120 + 48);
  EXPECT_EQ(bytes("ps", 2), 120u + 48);
  // Two hosts: chunks of 5 floats, 3 segments, 68 bytes each.
  EXPECT_EQ(bytes("hierarchical", 0, {7, 7, 3, 3}), 2u * 136 - 68 - 68 + 136 + 48);
  EXPECT_EQ(bytes("hierarchical", 3, {7, 7, 3, 3}), 136u + 48);
  EXPECT_EQ(bytes("hierarchical", 0, {5, 5, 5, 5}), 3u * 120 + 48);
  for (const Topology& topology : topology_list()) {
    const std::vector<int> hosts = {0};
    EXPECT_EQ(topology.wire_bytes({0, 4, 2}, {}, 0, *codec), 0u) << topology.name;
    EXPECT_EQ(topology.wire_bytes({9, 1, 2}, hosts, 0, *codec), 0u) << topology.name;
  }
}

TEST(Topology, UnknownNamesAreRefusedWithThoseThatThereAre) {
  try {
    (void)find_topology("star");
    ADD_FAILURE() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_STREQ(error.what(),
                 "--topology star: unknown topology; known: ring, direct, tree, hierarchical, ps");
  }
}

}  // namespace
}  // namespace dp
