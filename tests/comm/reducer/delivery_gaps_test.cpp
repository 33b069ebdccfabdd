// For how many exchanges in a row sums have had nothing of a tensor.
#include "comm/reducer/delivery_gaps.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace dp {
namespace {

using Gap = DeliveryGaps::Gap;

// Two buckets, of which `middle` alone is sent in fp32; the last tensor is longer than the blocks
// in which it is looked at.
constexpr std::size_t kFirst = 10, kMiddle = 20, kLast = 1'300;
std::vector<Bucket> buckets() {
  std::vector<Bucket> buckets(3);
  buckets[0].codec = parse_codec_spec("ecq:bits=0.1");
  buckets[0].tensors = {{.offset = 0, .rows = 1, .columns = kFirst}};
  buckets[1].codec = parse_codec_spec("none");
  buckets[1].tensors = {{.offset = kFirst, .rows = 1, .columns = kMiddle}};
  buckets[2].codec = parse_codec_spec("q8");
  buckets[2].tensors = {{.offset = kFirst + kMiddle, .rows = 1, .columns = kLast}};
  return buckets;
}

class DeliveryGapsTest : public testing::Test {
 protected:
  // An exchange whose sums are zeros but for these values.
  void exchange(std::initializer_list<std::size_t> places, float value = 1.0f) {
    std::vector<float> sums(kFirst + kMiddle + kLast, 0.0f);
    for (const std::size_t place : places) sums[place] = value;
    gaps_.add(sums);
  }
  DeliveryGaps gaps_{buckets()};
  static constexpr std::size_t kEnd = kFirst + kMiddle + kLast;
};

TEST_F(DeliveryGapsTest, OneValueAnywhereIsADelivery) {
  for (const std::size_t place : {kFirst + kMiddle, kEnd - 512, kEnd - 1}) {
    exchange({kFirst - 1, place}, 1e-45f);  // the smallest there is
    exchange({0, place}, -1.0f);
  }
  EXPECT_TRUE(gaps_.take().empty());
}

TEST_F(DeliveryGapsTest, GapsAreCountedUntilTheTensorIsServed) {
  exchange({0});
  exchange({0, kEnd - 1});
  exchange({kEnd - 1}, -0.0f);  // a zero
  exchange({0});
  exchange({});
  EXPECT_EQ(gaps_.take(), (std::vector<Gap>{{.tensor = 0, .now = 1, .longest = 1},
                                            {.tensor = 2, .now = 3, .longest = 3}}));
  // The next epoch's gap begins in this one.
  exchange({0});
  exchange({0, kEnd - 1});
  EXPECT_EQ(gaps_.take(), (std::vector<Gap>{{.tensor = 0, .now = 0, .longest = 1},
                                            {.tensor = 2, .now = 0, .longest = 4}}));
  exchange({0, kEnd - 1});
  EXPECT_TRUE(gaps_.take().empty());
}

TEST(DeliveryGaps, OfNoTensorsThereAreNone) {
  DeliveryGaps none;
  none.add(std::vector<float>(5));
  EXPECT_TRUE(none.take().empty());
}

}  // namespace
}  // namespace dp
