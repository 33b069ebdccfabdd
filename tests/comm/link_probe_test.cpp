// What is measured of the network, and the buckets that follow.
#include "comm/link_probe.hpp"

#include <gtest/gtest.h>

namespace dp {
namespace {

TEST(LinkProbe, IsTheSameOnAllRanks) {
  Communicator comm;
  const LinkProbe link = probe_link(comm);
  for (const LinkProbe& other : comm.all_gather(link)) {
    EXPECT_EQ(other.bytes_per_s, link.bytes_per_s);
    EXPECT_EQ(other.latency_s, link.latency_s);
    EXPECT_EQ(other.uncertainty, link.uncertainty);
  }
  EXPECT_EQ(link.bytes_per_s > 0.0, comm.size() > 1);
  EXPECT_EQ(link.latency_s > 0.0, comm.size() > 1);
  // Memory carries more than a floppy disk, less than the processor's registers.
  if (comm.size() == 1) return;
  EXPECT_GT(link.bytes_per_s, 1e5);
  EXPECT_LT(link.bytes_per_s, 1e12);
  EXPECT_LT(link.latency_s, 1.0);
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
  EXPECT_EQ(size(1000, 1e-4, 4, "powersgd"), 8 * kMiB);
  // A long way: 2 * 4 * 20.5 ms * 12.5 MB/s = 2 MB.
  EXPECT_EQ(size(100, 20e-3, 4, "none"), 2 * kMiB);
  EXPECT_EQ(size(1, 1e-3, 2, "none"), kMiB / 4);
  EXPECT_EQ(size(1e6, 1e-5, 32, "none"), 8 * kMiB);
}

}  // namespace
}  // namespace dp
