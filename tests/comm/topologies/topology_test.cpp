// What every topology promises, at sizes that matter to the cutting: exact sums of integers, the
// same bits on all ranks, nothing lost, the bytes of its formula. With every codec:
// segment_exchange_test.cpp.
#include "comm/topologies/topology.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/comm/exchange/exchange_fleet.hpp"
#include "tests/support/skipped.hpp"

namespace dp {
namespace {

using namespace testing_support;

constexpr std::size_t kSegment = 64;

TEST(Topology, SumsIntegersExactly) {
  Communicator comm;
  const auto p = static_cast<std::size_t>(comm.size());
  std::uint64_t step = 0;
  for (const Case& c : all_cases(comm.size())) {
    SCOPED_TRACE(c.text());
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, p - 1, p, p + 1, 3 * p + 1,
                                std::size_t{257}, std::size_t{5'003}}) {
      for (const std::size_t segment : {std::size_t{1}, std::size_t{3}, std::size_t{65536}}) {
        if (segment < 3 && n > 300) continue;  // thousands of messages
        Bench bench(comm, "none", n, segment, 0, c.topology, c.hosts, c.owner_weights);
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

TEST(Topology, EverySizeHasTheSameBitsAndTheBytesOfTheFormula) {
  Communicator comm;
  const auto p = static_cast<std::size_t>(comm.size());
  for (const Case& c : all_cases(comm.size())) {
    for (const std::size_t n :
         {std::size_t{0}, std::size_t{1}, p - 1, p, 2 * p + 1, std::size_t{63}, std::size_t{64},
          std::size_t{65}, 64 * p - 1, 64 * p + 1, 5 * 64 * p + 7}) {
      SCOPED_TRACE(c.text() + ", " + std::to_string(n));
      Fleet fleet(comm, c, {"fp16", "q8:block=64", "q4:block=8"}, n, kSegment);
      fleet.run_steps(comm, n);
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
                      const EncodeContext&) const override {
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
  MpiTransport transport(comm);
  for (const Case& c : all_cases(comm.size())) {
    SCOPED_TRACE(c.text());
    for (const std::size_t n : {p + 1, 200 * p + 5}) {
      std::vector<float> gradient(n, 1.0f);
      const auto exchange = find_topology(c.topology)
                                .make({.transport = &transport,
                                       .gradient = gradient,
                                       .codec = &codec,
                                       .segment = kSegment,
                                       .hosts = c.hosts,
                                       .owner_weights = c.owner_weights});
      BufferSet buffers(exchange->needs());
      comm.barrier();
      exchange->post_receives(buffers, 0);
      exchange->start();
      while (!exchange->done()) exchange->progress();
      for (const float v : gradient) EXPECT_EQ(v, static_cast<float>(p));
      EXPECT_EQ(exchange->stats().sent_bytes,
                find_topology(c.topology)
                    .wire_bytes({.elements = n,
                                 .ranks = p,
                                 .segment = kSegment,
                                 .owner_weights = c.owner_weights},
                                c.hosts, static_cast<std::size_t>(comm.rank()), twin));
    }
  }
}

TEST(Topology, ASumThatOverflowsIsNotFinite) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  for (const Case& c : all_cases(comm.size())) {
    Bench bench(comm, "none", 100, kSegment, 0, c.topology, c.hosts);
    for (float& v : bench.gradient) v = 3e38f;
    bench.run(0);
    EXPECT_FALSE(bench.exchange->finite()) << c.text();
    expect_same_bits(comm, bench.gradient);
  }
}

// What a value costs, by hand: 10 floats on 4 ranks in segments of 2, in fp32. Chunks of 3, 3, 2, 2
// floats are W = 52, 52, 28, 28 bytes; the whole bucket, five segments, 140; notices 60.
TEST(Topology, FormulasByHand) {
  const auto codec = make_codec(parse_codec_spec("none"));
  const ExchangeShape shape{.elements = 10, .ranks = 4, .segment = 2};
  const ExchangeShape turned{.elements = 10, .ranks = 4, .segment = 2, .turn = 5};
  const auto bytes = [&](const char* topology, std::size_t rank, std::vector<int> hosts = {}) {
    return find_topology(topology).wire_bytes(shape, hosts, rank, *codec);
  };
  EXPECT_EQ(bytes("ring", 0), 2u * (52 + 52 + 28 + 28) - 52 - 28 + 60);
  EXPECT_EQ(bytes("direct", 0), 52u + 28 + 28 + 3 * 52 + 60);
  EXPECT_EQ(bytes("direct", 3), 52u + 52 + 28 + 3 * 28 + 60);
  // On a grid of 2 x 2, chunks of 5 and 5 floats are W = 80 bytes each (three segments), and a rank
  // has two partners. Rank 0 owns chunk 0: it sends chunk 1, and its total to two ranks. Rank 2
  // collects it: it sends chunk 1, the sum, and passes the total on.
  EXPECT_EQ(bytes("grid", 0), 80u + 2 * 80 + 40);
  EXPECT_EQ(bytes("grid", 2), 80u + 80 + 80 + 40);
  // Rank 0 owns the last chunk, and rank 2 the second one.
  EXPECT_EQ(find_topology("direct").wire_bytes(turned, {}, 0, *codec), 52u + 52 + 28 + 3 * 28 + 60);
  EXPECT_EQ(find_topology("direct").wire_bytes(turned, {}, 2, *codec), 52u + 28 + 28 + 3 * 52 + 60);
  EXPECT_EQ(bytes("tree", 0), 2u * 140 + 60);  // children 1 and 2
  EXPECT_EQ(bytes("tree", 1), 140u + 60);
  EXPECT_EQ(bytes("tree", 2), 2u * 140 + 60);  // child 3, parent 0
  EXPECT_EQ(bytes("tree", 3), 140u + 60);
  EXPECT_EQ(bytes("ps", 0), 3u * 140 + 60);
  EXPECT_EQ(bytes("ps", 2), 140u + 60);
  // Two hosts: chunks of 5 floats, 3 segments, 80 bytes each.
  EXPECT_EQ(bytes("hierarchical", 0, {7, 7, 3, 3}), 2u * 160 - 80 - 80 + 160 + 60);
  EXPECT_EQ(bytes("hierarchical", 3, {7, 7, 3, 3}), 160u + 60);
  EXPECT_EQ(bytes("hierarchical", 0, {5, 5, 5, 5}), 3u * 140 + 60);
  for (const Topology& topology : topology_list()) {
    const std::vector<int> hosts = {0};
    EXPECT_EQ(topology.wire_bytes({0, 4, 2}, {}, 0, *codec), 0u) << topology.name;
    EXPECT_EQ(topology.wire_bytes({9, 1, 2}, hosts, 0, *codec), 0u) << topology.name;
  }
}

TEST(Topology, SuitsCodecAndRanks) {
  const CodecSpec few_bits = parse_codec_spec("ecq:bits=0.1"), q8 = parse_codec_spec("q8");
  EXPECT_EQ(suitable_topology(few_bits, 2), "direct");
  EXPECT_EQ(suitable_topology(few_bits, kManyRanks - 1), "direct");
  EXPECT_EQ(suitable_topology(few_bits, kManyRanks), "grid");
  EXPECT_EQ(suitable_topology(q8, 2), "");
  EXPECT_EQ(suitable_topology(q8, 64), "");
}

TEST(Topology, UnknownNamesAreRefusedWithThoseThatThereAre) {
  try {
    (void)find_topology("star");
    ADD_FAILURE() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_STREQ(
        error.what(),
        "topology star: unknown topology; known: ring, direct, grid, tree, hierarchical, ps");
  }
}

}  // namespace
}  // namespace dp
