// What is measured of the network, and the buckets that follow.
#include "comm/network/link_probe.hpp"

#include <gtest/gtest.h>

#include "tests/support/skipped.hpp"

namespace dp {
namespace {

TEST(LinkProbe, OneRankHasNoLink) {
  Communicator comm;
  if (comm.size() > 1) GTEST_SKIP() << "several ranks have links";
  const LinkProbe link = probe_link(comm);
  EXPECT_EQ(link.bytes_per_s, 0.0);
  EXPECT_EQ(link.latency_s, 0.0);
  EXPECT_FALSE(link.is_reliable());
}

TEST(LinkProbe, IsTheSameOnAllRanks) {
  Communicator comm;
  DP_NEEDS_RANKS(comm, 2);
  const LinkProbe link = probe_link(comm);
  for (const LinkProbe& other : comm.all_gather(link)) {
    EXPECT_EQ(other.bytes_per_s, link.bytes_per_s);
    EXPECT_EQ(other.latency_s, link.latency_s);
    EXPECT_EQ(other.uncertainty, link.uncertainty);
    EXPECT_EQ(other.fastest_bytes_per_s, link.fastest_bytes_per_s);
  }
  // Memory carries more than a floppy disk, less than the processor's registers.
  EXPECT_GT(link.bytes_per_s, 1e5);
  EXPECT_LT(link.bytes_per_s, 1e12);
  EXPECT_GE(link.fastest_bytes_per_s, link.bytes_per_s);
  EXPECT_GT(link.latency_s, 0.0);
  EXPECT_LT(link.latency_s, 1.0);
}

// The lab's links have bursts (experiments/studies/plan.ini shows what they are good for); memory
// has none.
TEST(LinkProbe, OneHostHasNoBursts) {
  Communicator comm;
  EXPECT_EQ(probe_burst(comm, {.bytes_per_s = 1e9, .latency_s = 1e-6}), 0.0);
}

TEST(BucketSize, FollowsLinkAndCodec) {
  constexpr std::size_t kMiB = 1 << 20;
  const auto size = [](double mbit, double latency_s, std::size_t ranks, const char* codec) {
    return choose_bucket_bytes({.bytes_per_s = mbit * 1e6 / 8, .latency_s = latency_s}, ranks,
                               parse_codec_spec(codec));
  };
  // 2 * 4 * 0.6 ms * 12.5 MB/s = 60 kB, and four times that with a quarter of the bytes.
  EXPECT_EQ(size(100, 1e-4, 4, "none"), kMiB / 4);
  EXPECT_EQ(size(100, 1e-4, 4, "q8"), kMiB / 4);
  EXPECT_EQ(size(100, 1e-4, 4, "q4"), kMiB / 2);
  EXPECT_EQ(size(1000, 1e-4, 4, "q8"), 4 * kMiB);
  EXPECT_EQ(size(1000, 1e-4, 4, "topk"), 8 * kMiB);
  // 2 * 4 * 0.6 ms * 50 MB/s = 240 kB; half of the values and their places are 53 % of fp32, half
  // of the values as bf16 28 %, half of them without places 50 %, a twentieth 6 %.
  EXPECT_EQ(size(400, 1e-4, 4, "topk:ratio=0.5"), kMiB / 2);
  EXPECT_EQ(size(400, 1e-4, 4, "topk:ratio=0.5,value=bf16"), kMiB);
  EXPECT_EQ(size(400, 1e-4, 4, "randk:ratio=0.5"), kMiB / 2);
  EXPECT_EQ(size(400, 1e-4, 4, "topk:ratio=0.05"), 4 * kMiB);
  // A long way: 2 * 4 * 20.5 ms * 12.5 MB/s = 2 MB.
  EXPECT_EQ(size(100, 20e-3, 4, "none"), 2 * kMiB);
  EXPECT_EQ(size(1, 1e-3, 2, "none"), kMiB / 4);
  EXPECT_EQ(size(1e6, 1e-5, 32, "none"), 8 * kMiB);
}

// Two matrices of 64 x 576 at rank 16: 2 x 10,240 floats are sent instead of 2 x 36,864, 28 %. At
// rank 1 it is less than 2 %. What is one-dimensional or sent in fp32 for its name is in no such
// bucket.
TEST(BucketSize, FollowsTheFactorsOfPowerSgd) {
  constexpr std::size_t kMiB = 1 << 20, n = 36864;
  std::vector<TensorSlot> tensors = {{0, 64, 576},
                                     {n, 64, 576},
                                     {2 * n, 100, 100, false, CodecSpec::exact()},
                                     {2 * n + 10'000, 1, 512, true}};
  const auto size = [&](const char* codec) {
    return choose_bucket_bytes({.bytes_per_s = 250e6 / 8, .latency_s = 1e-4}, 4,
                               parse_codec_spec(codec), tensors);
  };
  EXPECT_EQ(size("powersgd:rank=16"), kMiB);
  EXPECT_EQ(size("powersgd:rank=1"), 8 * kMiB);
  tensors = {{0, 1, 512, true}};
  EXPECT_EQ(size("powersgd:rank=16"), kMiB / 4) << "nothing is factored: fp32";
}

// So few bits would make one bucket of all. A sixth of 10 MB is below 2 MiB; of a small model, a
// quarter of 1 MiB is the least.
TEST(BucketSize, IsASixthAtMostOfCodecsWithARate) {
  constexpr std::size_t kMiB = 1 << 20;
  const auto size = [&](std::size_t rows, const char* codec) {
    const std::vector<TensorSlot> tensors = {{0, rows, 1000}};
    return choose_bucket_bytes({.bytes_per_s = 1e9 / 8, .latency_s = 1e-4}, 4,
                               parse_codec_spec(codec), tensors);
  };
  EXPECT_EQ(size(2500, "ecq:bits=0.35"), kMiB);
  EXPECT_EQ(size(250, "ecq:bits=0.35"), kMiB / 4);
  EXPECT_EQ(size(2500, "topk"), 8 * kMiB);
}

// Over a long path, 4 packets of 1448 bytes in the part of each of 4 ranks are the least.
TEST(BucketSize, FillsPacketsOnALongPath) {
  const std::vector<TensorSlot> tensors = {{0, 2500, 1000}};
  const auto bytes = [&](double latency_s, const char* codec) {
    return choose_bucket_bytes({.bytes_per_s = 20e6 / 8, .latency_s = latency_s}, 4,
                               parse_codec_spec(codec), tensors);
  };
  EXPECT_NEAR(static_cast<double>(bytes(50e-3, "ecq:bits=0.35")), 4 * 1448 * 4 * 32 / 0.35, 1.0);
  EXPECT_EQ(bytes(50e-3, "ecq:bits=0.35"), bytes(5e-3, "ecq:bits=0.35"));
  EXPECT_EQ(bytes(4e-3, "ecq:bits=0.35"), std::size_t{1} << 20) << "a sixth of the model";
  EXPECT_EQ(bytes(50e-3, "ecq:bits=4"), std::size_t{1} << 20);
  const CodecSpec by_error = parse_codec_spec("ecq:error=0.5");
  EXPECT_NEAR(static_cast<double>(bytes(50e-3, "ecq:error=0.5")),
              4 * 1448 * 4 / payload_share(by_error, {}), 1.0);
}

TEST(LinkProbe, UncertainRatesTellOnlyFarDifferencesApart) {
  const auto can_tell = [](double uncertainty, double fastest) {
    return LinkProbe{.bytes_per_s = 1e6, .uncertainty = uncertainty, .fastest_bytes_per_s = fastest}
        .can_tell_links_apart();
  };
  EXPECT_TRUE(can_tell(0.05, 1.3e6));
  EXPECT_FALSE(can_tell(0.2, 2.2e6));
  EXPECT_TRUE(can_tell(0.2, 10e6));
}

// A message has 160 bytes of headers on the wire; a byte of payload holds 8 / bits values.
TEST(BucketSize, OutweighsTheFramesOfBriefMessages) {
  std::vector<TensorSlot> tensors = {{0, 2500, 1000}};
  const auto values = [&](std::size_t ranks, const char* codec, double bit_per_s = 1e7) {
    const std::size_t bytes = choose_bucket_bytes({.bytes_per_s = bit_per_s / 8, .latency_s = 1e-4},
                                                  ranks, parse_codec_spec(codec), tensors);
    return static_cast<double>(bytes / sizeof(float));
  };
  EXPECT_NEAR(values(4, "ecq:bits=0.1"), 16 * 160 * 4 * 8 / 0.1, 4000);
  EXPECT_NEAR(values(16, "ecq:bits=0.02"), 16 * 160 * 16 * 8 / 0.02, 80000);
  EXPECT_EQ(values(4, "ecq:bits=0.1", 0), values(4, "ecq:bits=0.1"));
  EXPECT_EQ(values(4, "ecq:bits=0.35", 0), 250'000u);
  // A larger usual size stays: a sixth of 44 MB, as a power of 2.
  tensors = {{0, 11'000, 1000}};
  EXPECT_EQ(values(4, "ecq:bits=0.1", 1e9), (4u << 20) / sizeof(float));
}

TEST(Window, FollowsTheBytesUnderWay) {
  constexpr std::size_t kSegment = 256u << 10;
  const auto window = [&](double mbit, double latency_s, const char* codec) {
    return choose_window({.bytes_per_s = mbit * 1e6 / 8, .latency_s = latency_s},
                         parse_codec_spec(codec), kSegment);
  };
  EXPECT_EQ(window(100, 1e-4, "none"), 4u);
  EXPECT_EQ(window(1000, 1e-4, "none"), 4u);
  // 2 * 125 MB/s * 21 ms = 5.25 MB: 21 segments of 262 kB; of a quarter of that, more than 32.
  EXPECT_EQ(window(1000, 10e-3, "none"), 21u);
  EXPECT_EQ(window(1000, 10e-3, "q8"), 32u);
  EXPECT_EQ(window(100, 10e-3, "q8"), 8u);
  EXPECT_EQ(window(0, 0, "none"), 4u);
}

}  // namespace
}  // namespace dp
