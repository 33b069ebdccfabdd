#include "comm/topologies/buckets.hpp"

#include <gtest/gtest.h>

#include <algorithm>

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
  const auto buckets = plan_buckets(
      tensors, {.bucket_bytes = 4000, .codec = parse_codec_spec("q8"), .min_compress_bytes = 1000});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].offset, 0u);
  EXPECT_EQ(buckets[0].elements, 1100u);
  EXPECT_EQ(buckets[0].codec, parse_codec_spec("q8"));
  EXPECT_EQ(buckets[0].why, "");
  EXPECT_EQ(buckets[1].elements, 2000u);
  EXPECT_EQ(buckets[1].first_tensor, 2u);
  EXPECT_EQ(buckets[1].end_tensor, 3u);
  EXPECT_EQ(buckets[2].elements, 100u);
  EXPECT_TRUE(buckets[2].codec.is_exact());
  EXPECT_EQ(buckets[2].why, "too small to gain");
  EXPECT_EQ(buckets[3].offset, 3200u);
  EXPECT_EQ(buckets[3].elements, 30u);
  EXPECT_TRUE(buckets[3].codec.is_exact());
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
    const auto buckets =
        plan_buckets(tensors, {.bucket_bytes = bytes, .codec = parse_codec_spec("q4:block=64")});
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

// Backward ends with the last tensors, for which training waits: these are an eighth of the region.
TEST(Buckets, MostOfALargeOneDimensionalRegionGoesBeforeTheLastMatrices) {
  const auto tensors =
      slots({{2000, false}, {3000, false}, {500, true}, {300, true}, {60, true}, {40, true}});
  const auto buckets = plan_buckets(
      tensors,
      {.bucket_bytes = 4000, .codec = parse_codec_spec("ecq"), .min_compress_bytes = 3600});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].offset, 0u);
  const Bucket &early = buckets[1], &matrices = buckets[2], &last = buckets[3];
  EXPECT_EQ(matrices.offset, 2000u);
  EXPECT_EQ(matrices.elements, 3000u);
  EXPECT_EQ(early.offset, 5000u);
  EXPECT_EQ(early.elements, 800u);
  EXPECT_EQ(early.first_tensor, 2u);
  EXPECT_EQ(early.end_tensor, 4u);
  EXPECT_EQ(early.tensors.size(), 2u);
  EXPECT_EQ(last.offset, 5800u);
  EXPECT_EQ(last.elements, 100u);
  EXPECT_EQ(last.first_tensor, 4u);
  EXPECT_EQ(last.end_tensor, 6u);
  ASSERT_EQ(last.tensors.size(), 2u);
  EXPECT_EQ(last.tensors[0].offset, 5800u);
  for (const Bucket* bucket : {&early, &last}) {
    EXPECT_EQ(bucket->codec, parse_codec_spec("q8:block=256"));
    EXPECT_EQ(bucket->why, "one-dimensional");
  }
}

TEST(Buckets, CoverTheGradientWithALargeOneDimensionalRegion) {
  const auto tensors =
      slots({{2000, false}, {7, false}, {900, true}, {4000, true}, {600, true}, {1, true}});
  for (const std::size_t bytes : {1u, 1000u, 1u << 30}) {
    auto buckets = plan_buckets(tensors, {.bucket_bytes = bytes, .min_compress_bytes = 100});
    EXPECT_EQ(buckets.size(), bytes > 1u << 20 ? 2u : 4u);
    std::ranges::sort(buckets, {}, &Bucket::offset);
    std::size_t offset = 0, tensor = 0;
    for (const Bucket& bucket : buckets) {
      EXPECT_EQ(bucket.offset, offset);
      EXPECT_EQ(bucket.first_tensor, tensor);
      ASSERT_EQ(bucket.tensors.size(), bucket.end_tensor - bucket.first_tensor);
      for (const TensorSlot& slot : bucket.tensors) {
        EXPECT_EQ(slot.offset, offset);
        offset += slot.elements();
      }
      EXPECT_EQ(bucket.offset + bucket.elements, offset);
      tensor = bucket.end_tensor;
    }
    EXPECT_EQ(offset, 7508u);
    EXPECT_EQ(tensor, tensors.size());
  }
}

TEST(Buckets, ASmallOneDimensionalRegionIsOneBucket) {
  const auto count = [](std::initializer_list<std::pair<std::size_t, bool>> sizes) {
    return plan_buckets(slots(sizes), {.bucket_bytes = 4000, .min_compress_bytes = 3600}).size();
  };
  EXPECT_EQ(count({{2000, false}, {3000, false}, {500, true}, {399, true}}), 3u);  // 3,596 bytes
  EXPECT_EQ(count({{2000, false}, {3000, false}, {500, true}, {400, true}}), 4u);
  // Nothing is sent before the end of backward.
  EXPECT_EQ(count({{2000, false}, {5000, true}, {400, true}}), 2u);
  EXPECT_EQ(count({{5000, true}, {400, true}}), 1u);
  // There is nothing to cut.
  EXPECT_EQ(count({{2000, false}, {3000, false}, {5000, true}}), 3u);
}

TEST(Buckets, OfFewBitsAreFewAndSendOneDimensionalTensorsNowAndThen) {
  const CodecSpec few = parse_codec_spec("ecq:bits=0.1,velocity=masked");
  const auto plan = [&](std::initializer_list<std::pair<std::size_t, bool>> sizes,
                        const CodecSpec& codec) {
    return plan_buckets(slots(sizes),
                        {.bucket_bytes = 40'000, .codec = codec, .min_compress_bytes = 1000});
  };
  // The last 4,990 matrix values are less than half a bucket.
  const auto joined =
      plan({{6000, false}, {5000, false}, {4990, false}, {200, true}, {49, true}}, few);
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_EQ(joined[0].elements, 15'990u);
  EXPECT_EQ(joined[0].first_tensor, 0u);
  EXPECT_EQ(joined[0].end_tensor, 3u);
  EXPECT_EQ(joined[0].tensors.size(), 3u);
  EXPECT_EQ(joined[0].codec, few);
  EXPECT_EQ(joined[0].every, 1u);
  EXPECT_EQ(joined[1].offset, 15'990u);
  EXPECT_EQ(joined[1].elements, 249u);
  EXPECT_EQ(joined[1].codec, parse_codec_spec("q4:block=256"));
  EXPECT_EQ(joined[1].every, 8u);
  EXPECT_EQ(joined[1].why, "one-dimensional, in every 8th step");
  const auto apart = plan({{6000, false}, {5000, false}, {5000, false}, {250, true}}, few);
  ASSERT_EQ(apart.size(), 3u);
  EXPECT_EQ(apart[1].elements, 5000u);
  EXPECT_EQ(apart[2].every, 8u);
  // Gradients, and more bits, are exchanged in every step.
  for (const char* spec : {"ecq:bits=0.1", "ecq:bits=0.11,velocity=masked", "ecq", "q8"}) {
    for (const Bucket& bucket : plan({{6000, false}, {50, true}}, parse_codec_spec(spec))) {
      EXPECT_EQ(bucket.every, 1u) << spec;
    }
  }
}

TEST(Buckets, OfFewBitsAreExchangedInEveryStepForAdam) {
  const auto buckets = plan_buckets(
      slots({{60'000, false}, {50, true}}),
      {.codec = parse_codec_spec("ecq:bits=0.1,velocity=on"), .optimizer_normalizes = true});
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[1].every, 1u);
  EXPECT_EQ(buckets[1].why, "one-dimensional");
}

TEST(Buckets, OfFewBitsLeaveExcludedTensorsAlone) {
  auto tensors = slots({{6000, false}, {5000, false}, {4000, false}, {50, true}, {49, true}});
  tensors[2].codec = tensors[3].codec = CodecSpec::exact();
  const auto buckets = plan_buckets(
      tensors, {.bucket_bytes = 40'000, .codec = parse_codec_spec("ecq:bits=0.1,velocity=masked")});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].elements, 11'000u);
  for (const std::size_t exact : {1u, 2u}) {
    EXPECT_TRUE(buckets[exact].codec.is_exact());
    EXPECT_EQ(buckets[exact].every, 1u);
  }
  EXPECT_EQ(buckets[3].elements, 49u);
  EXPECT_EQ(buckets[3].every, 8u);
}

TEST(Buckets, NothingIsSaidWhereNothingIsCompressed) {
  for (const Bucket& bucket : plan_buckets(slots({{10, false}, {10, true}}), {})) {
    EXPECT_TRUE(bucket.codec.is_exact());
    EXPECT_EQ(bucket.why, "");
  }
}

TEST(Buckets, ExcludedTensorsTravelAlone) {
  auto tensors = slots({{600, false}, {500, false}, {2000, false}, {10, true}});
  tensors[1].codec = CodecSpec::exact();
  tensors[3].codec = CodecSpec::exact();
  const auto buckets =
      plan_buckets(tensors, {.codec = parse_codec_spec("q8"), .min_compress_bytes = 0});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].codec, parse_codec_spec("q8"));
  EXPECT_EQ(buckets[1].elements, 500u);
  EXPECT_TRUE(buckets[1].codec.is_exact());
  EXPECT_EQ(buckets[1].why, "excluded by name");
  EXPECT_EQ(buckets[2].codec, parse_codec_spec("q8"));
  EXPECT_EQ(buckets[3].why, "one-dimensional");
}

TEST(Buckets, ExcludedVectorsTravelInFp32) {
  auto tensors = slots({{9000, false}, {10, true}, {20, true}, {5, true}});
  tensors[2].codec = CodecSpec::exact();
  const auto buckets = plan_buckets(tensors, {.codec = parse_codec_spec("ecq")});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[1].codec, parse_codec_spec("q8:block=256"));
  EXPECT_EQ(buckets[2].elements, 20u);
  EXPECT_TRUE(buckets[2].codec.is_exact());
  EXPECT_EQ(buckets[3].codec, buckets[1].codec);
  // Vectors that travel in fp32 anyway share a bucket.
  EXPECT_EQ(plan_buckets(tensors, {.codec = parse_codec_spec("q4")}).size(), 2u);
}

TEST(Buckets, EdgesAndErrors) {
  EXPECT_TRUE(plan_buckets({}, {}).empty());
  EXPECT_EQ(plan_buckets(slots({{10, true}}), {}).size(), 1u);
  EXPECT_EQ(plan_buckets(slots({{10, false}}), {}).size(), 1u);
}

}  // namespace
}  // namespace dp
