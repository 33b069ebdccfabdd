// topk: the values that it chooses, against a sort, and its bytes.
#include "tests/codecs/sparse_testing.hpp"

namespace dp {
namespace {

// The k largest magnitudes, of equal ones the first, without zeros.
std::vector<std::size_t> places_by_sorting(std::span<const float> v, std::size_t k) {
  std::vector<std::size_t> places(v.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::stable_sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
    return magnitude_bits(v[a]) > magnitude_bits(v[b]);
  });
  places.resize(k);
  std::erase_if(places, [&](std::size_t i) { return v[i] == 0.0f; });
  std::sort(places.begin(), places.end());
  return places;
}

void expect_selects(std::span<const float> v, std::size_t k) {
  const auto want = places_by_sorting(v, k);
  Bytes room(4 * k);
  const sparse::Cut cut = sparse::cut_of_largest(v.data(), v.size(), k);
  const std::size_t count = sparse::collect(v.data(), v.size(), cut, room.data());
  ASSERT_EQ(count, want.size()) << v.size() << " values, k = " << k;
  for (std::size_t j = 0; j < count; ++j) {
    std::uint32_t place = 0;
    std::memcpy(&place, room.data() + 4 * j, 4);
    ASSERT_EQ(place, want[j]) << v.size() << " values, k = " << k;
  }
}

TEST(TopK, SelectsAsASortDoes) {
  for (const std::size_t n : kSizes) {
    if (n == 0) continue;
    for (const double ratio : {0.0001, 0.001, 0.01, 0.03, 0.0624, 0.0626, 0.25, 0.7, 1.0}) {
      const std::size_t k = sparse::share_of(n, ratio);
      expect_selects(normals(n, 20), k);
      expect_selects(awkward(n, 21), k);
      expect_selects(std::vector<float>(n, -1.5f), k);
      expect_selects(std::vector<float>(n, 0.0f), k);
      // One value apart from the rest, equal neighbours in the last bit, a ramp of denormals.
      std::vector<float> v(n, 1.0f);
      v[n / 2] = 1e38f;
      expect_selects(v, k);
      for (std::size_t i = 0; i < n; ++i)
        v[i] = std::bit_cast<float>(0x3F800000u + static_cast<std::uint32_t>(i * 7 % 5));
      expect_selects(v, k);
      for (std::size_t i = 0; i < n; ++i) {
        v[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i * 31 % 1000));
      }
      expect_selects(v, k);
    }
  }
}

TEST(TopK, SelectsEveryK) {
  const auto v = awkward(300, 22);
  for (std::size_t k = 1; k <= v.size(); ++k) expect_selects(v, k);
}

TEST(TopK, ShareIsRoundedUp) {
  EXPECT_EQ(sparse::share_of(0, 0.01), 0u);
  EXPECT_EQ(sparse::share_of(1, 0.01), 1u);
  EXPECT_EQ(sparse::share_of(100, 0.01), 1u);
  EXPECT_EQ(sparse::share_of(101, 0.01), 2u);
  EXPECT_EQ(sparse::share_of(100, 0.07), 7u);  // the product is a little more
  EXPECT_EQ(sparse::share_of(65536, 0.01), 656u);
  EXPECT_EQ(sparse::share_of(12345, 1.0), 12345u);
}

TEST(TopK, BytesAreAsDocumented) {
  // 4 of 40 values are sent, at places 2, 3, 20 and 39: gaps 2, 0, 16, 18.
  const auto codec = make_codec(parse_codec_spec("topk:ratio=0.1"));
  std::vector<float> v(40, 0.5f);
  v[2] = 1.0f;
  v[3] = -2.0f;
  v[20] = 1.5f;
  v[39] = -1.0f;
  // The bound 4 (b + 1) + floor(36 / 2^b) is 40, 26, 21, 20, 22: b = 3.
  EXPECT_EQ(sparse::rice_parameter(40, 4), 3u);
  EXPECT_EQ(sparse::most_gap_bits(40, 4), 20u);
  // 2: 1 010, 0: 1 000, 16: 00 1 000, 18: 00 1 010 (the low bits lowest first): 20 bits.
  const Bytes want = bytes_of({4,    0,    0,    0,                       //
                               0,    0,    0x80, 0x3F, 0, 0, 0,    0xC0,  // 1, -2
                               0,    0,    0xC0, 0x3F, 0, 0, 0x80, 0xBF,  // 1.5, -1
                               0x15, 0x04, 0x05});
  EXPECT_EQ(encode(*codec, v), want);
  std::vector<float> out(40, 0.0f);
  out[2] = 1.0f, out[3] = -2.0f, out[20] = 1.5f, out[39] = -1.0f;
  EXPECT_EQ(decode(*codec, want, 40), out);

  const auto short_codec = make_codec(parse_codec_spec("topk:ratio=0.1,value=bf16"));
  EXPECT_EQ(encode(*short_codec, v),
            bytes_of({4, 0, 0, 0, 0x80, 0x3F, 0, 0xC0, 0xC0, 0x3F, 0x80, 0xBF, 0x15, 0x04, 0x05}));
}

TEST(TopK, AllValuesAreABitMap) {
  const auto codec = make_codec(parse_codec_spec("topk:ratio=1"));
  const auto payload = encode(*codec, normals(19, 23));
  ASSERT_EQ(payload.size(), 4u + 4 * 19 + 3);
  EXPECT_EQ(payload[80], std::byte{0xFF});
  EXPECT_EQ(payload[82], std::byte{0x07});
}

// What the header says of an index at one in a hundred: 8.1 bits, up to 8.6 for any gaps.
TEST(TopK, IndicesAreShort) {
  const auto codec = make_codec(parse_codec_spec("topk"));
  const std::size_t n = 65536, k = 656;
  const auto payload = encode(*codec, normals(n, 24));
  const double bits = 8.0 * static_cast<double>(payload.size() - 4 - 4 * k) / k;
  EXPECT_GT(bits, 7.9);
  EXPECT_LT(bits, 8.3);
  EXPECT_LT(static_cast<double>(sparse::most_gap_bits(n, k)) / k, 8.6);
}

// No gaps of any shape take more bits than the bound, and the bound grows with the count.
TEST(TopK, GapBitsAreBounded) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{63}, std::size_t{1000}}) {
    std::size_t before = 0;
    for (std::size_t count = 1; count <= n; ++count) {
      const std::size_t most = sparse::most_gap_bits(n, count);
      EXPECT_GE(most, before);
      EXPECT_LE(most, n);
      before = most;
      const unsigned b = sparse::rice_parameter(n, count);
      for (unsigned other = 0; other < 20; ++other) {
        EXPECT_LE(most, count * (other + 1) + ((n - count) >> other));
      }
      // All gaps in one, at the end.
      EXPECT_LE(count * (b + 1) + ((n - count) >> b), most);
    }
  }
}

TEST(TopK, RefusesWhatNoEncoderWrites) {
  const auto codec = make_codec(parse_codec_spec("topk:ratio=0.1"));
  // One of 20 values (two at most): b = 3, a zero, a one and 000; the gap is 8.
  const Bytes canonical = bytes_of({1, 0, 0, 0, 0, 0, 0x80, 0x3F, 0x02});
  EXPECT_EQ(sparse::rice_parameter(20, 1), 3u);
  std::vector<float> want(20, 0.0f);
  want[8] = 1.0f;
  EXPECT_EQ(decode(*codec, canonical, 20), want);
  auto bad = canonical;
  bad.push_back(std::byte{0});  // a byte too many
  expect_throws(*codec, bad, 20);
  bad = canonical;
  bad[8] = std::byte{0x22};  // a bit behind the gap
  expect_throws(*codec, bad, 20);
  bad[8] = std::byte{0x1C};  // 16 + 3 = 19, the last place
  EXPECT_EQ(decode(*codec, bad, 20)[19], 1.0f);
  bad[8] = std::byte{0x24};  // 16 + 4 = 20, behind the end
  expect_throws(*codec, bad, 20);
  bad[8] = std::byte{0x00};  // no end of the unary part
  expect_throws(*codec, bad, 20);
  bad = canonical;
  bad[0] = std::byte{3};  // more values than the ratio allows
  expect_throws(*codec, bad, 20);
  for (const float value :
       {0.0f, -0.0f, std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    bad = canonical;
    std::memcpy(bad.data() + 4, &value, 4);
    expect_throws(*codec, bad, 20);
  }
  // Two values, b = 2. Gaps 18 and 0: 00001 01, 1 00; with 19 the second has no place left.
  EXPECT_EQ(sparse::rice_parameter(20, 2), 2u);
  Bytes two = bytes_of({2, 0, 0, 0, 0, 0, 0x80, 0x3F, 0, 0, 0x80, 0x3F, 0xD0, 0x00});
  EXPECT_EQ(decode(*codec, two, 20)[19], 1.0f);
  two[12] = std::byte{0xF0};
  expect_throws(*codec, two, 20);
  // The empty payload of no floats.
  EXPECT_EQ(encode(*codec, {}), bytes_of({0, 0, 0, 0}));
  expect_throws(*codec, bytes_of({1, 0, 0, 0, 0, 0, 0x80, 0x3F, 1}), 0);
}

}  // namespace
}  // namespace dp
