#include "comm/buckets.hpp"

#include <gtest/gtest.h>

#include "kernels/base/error.hpp"
#include "kernels/codecs/codec_spec.hpp"

namespace dp {
namespace {

std::vector<TensorSlot> slots(std::initializer_list<std::pair<std::size_t, bool>> sizes) {
  std::vector<TensorSlot> tensors;
  std::size_t offset = 0;
  for (const auto& [size, is_1d] : sizes) {
    tensors.push_back({.offset = offset, .rows = 1, .columns = size, .is_1d = is_1d});
    offset += size;
  }
  return tensors;
}

TEST(Buckets, ClosesWhenFullAndKeepsOneDimensionalTensorsApart) {
  const auto tensors =
      slots({{600, false}, {500, false}, {2000, false}, {100, false}, {10, true}, {20, true}});
  const auto buckets =
      plan_buckets(tensors, {.bucket_bytes = 4000, .codec = "q8", .min_compress_bytes = 1000});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].offset, 0u);
  EXPECT_EQ(buckets[0].elements, 1100u);
  EXPECT_EQ(buckets[0].codec, parse_codec_spec("q8").text());
  EXPECT_EQ(buckets[0].why, "");
  EXPECT_EQ(buckets[1].elements, 2000u);
  EXPECT_EQ(buckets[1].first_tensor, 2u);
  EXPECT_EQ(buckets[1].end_tensor, 3u);
  EXPECT_EQ(buckets[2].elements, 100u);
  EXPECT_EQ(buckets[2].codec, "none");
  EXPECT_EQ(buckets[2].why, "too small to gain");
  EXPECT_EQ(buckets[3].offset, 3200u);
  EXPECT_EQ(buckets[3].elements, 30u);
  EXPECT_EQ(buckets[3].codec, "none");
  EXPECT_EQ(buckets[3].why, "one-dimensional");
  EXPECT_EQ(buckets[3].first_tensor, 4u);
  EXPECT_EQ(buckets[3].end_tensor, 6u);
  ASSERT_EQ(buckets[3].tensors.size(), 2u);
  EXPECT_EQ(buckets[3].tensors[1].offset, 3210u);
  EXPECT_EQ(buckets[3].topology, "");
}

TEST(Buckets, CoverTheGradientWithoutGaps) {
  const auto tensors = slots({{5, false}, {1, false}, {70000, false}, {3, false}, {9, true}});
  for (const std::size_t bytes : {1u, 16u, 1000u, 1u << 30}) {
    const auto buckets = plan_buckets(tensors, {.bucket_bytes = bytes, .codec = "q4:block=64"});
    std::size_t offset = 0, tensor = 0;
    for (const Bucket& bucket : buckets) {
      EXPECT_EQ(bucket.offset, offset);
      EXPECT_EQ(bucket.first_tensor, tensor);
      offset += bucket.elements;
      tensor = bucket.end_tensor;
    }
    EXPECT_EQ(offset, 70018u);
    EXPECT_EQ(tensor, tensors.size());
  }
}

TEST(Buckets, NothingIsSaidWhereNothingIsCompressed) {
  for (const Bucket& bucket : plan_buckets(slots({{10, false}, {10, true}}), {})) {
    EXPECT_EQ(bucket.codec, "none");
    EXPECT_EQ(bucket.why, "");
  }
}

TEST(Buckets, ExcludedTensorsTravelAlone) {
  auto tensors = slots({{600, false}, {500, false}, {2000, false}, {10, true}});
  tensors[1].is_exact = true;
  tensors[3].is_exact = true;
  const auto buckets = plan_buckets(tensors, {.codec = "q8", .min_compress_bytes = 0});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].codec, parse_codec_spec("q8").text());
  EXPECT_EQ(buckets[1].elements, 500u);
  EXPECT_EQ(buckets[1].codec, "none");
  EXPECT_EQ(buckets[1].why, "excluded by name");
  EXPECT_EQ(buckets[2].codec, parse_codec_spec("q8").text());
  EXPECT_EQ(buckets[3].why, "one-dimensional");
}

TEST(Buckets, EdgesAndErrors) {
  EXPECT_TRUE(plan_buckets({}, {}).empty());
  EXPECT_EQ(plan_buckets(slots({{10, true}}), {}).size(), 1u);
  EXPECT_EQ(plan_buckets(slots({{10, false}}), {}).size(), 1u);
  EXPECT_THROW((void)plan_buckets({}, {.codec = "q7"}), Error);
}

}  // namespace
}  // namespace dp
