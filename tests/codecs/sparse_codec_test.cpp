// The sparse codecs, beyond what codec_test.cpp asks of all: which values are sent, the exact bytes
// of small examples, and payloads that no encoder writes. (topk's choice: topk_test.cpp.)
#include "tests/codecs/sparse_testing.hpp"

namespace dp {
namespace {

class SparseCodecs : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Codec> codec_ = make_codec(parse_codec_spec(GetParam()));
};

// A value that is sent as it is leaves nothing; one that is not sent stays as it is, bit for bit.
TEST_P(SparseCodecs, ValuesAreSentOrStay) {
  for (const std::size_t n : kSizes) {
    const auto v = awkward(n, n);
    std::vector<float> residual(n, 0.0f);
    const auto out = decode(*codec_, encode(*codec_, v, residual.data()), n);
    for (std::size_t i = 0; i < n; ++i) {
      if (out[i] == v[i]) {
        ASSERT_EQ(residual[i], 0.0f);
      } else if (out[i] == 0.0f) {
        ASSERT_EQ(bits_of(residual[i]), bits_of(v[i]));
      } else {
        ASSERT_EQ(residual[i], v[i] - out[i]);  // bf16, or enlarged
      }
    }
  }
}

// Every length is refused, and every change of a byte is refused or decodes to finite values: the
// decoder never reads or writes outside (run under the address sanitiser, this is what it finds).
TEST_P(SparseCodecs, DamagedPayloads) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{40}, std::size_t{300}}) {
    const auto payload = encode(*codec_, normals(n, 14, 3.0));
    for (std::size_t length = 0; length < payload.size(); ++length) {
      // A copy, so that the sanitiser sees its end.
      expect_throws(*codec_, Bytes(payload.begin(), payload.begin() + static_cast<long>(length)),
                    n);
    }
    for (std::size_t more = 1; more < 10; ++more) {
      auto longer = payload;
      longer.resize(payload.size() + more);
      expect_throws(*codec_, longer, n);
    }
    std::vector<float> out(n);
    for (std::size_t at = 0; at < payload.size(); ++at) {
      for (const unsigned change : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 0xFFu}) {
        auto damaged = payload;
        damaged[at] ^= static_cast<std::byte>(change);
        try {
          codec_->decode(damaged, out);
          for (const float v : out) ASSERT_TRUE(std::isfinite(v));
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::communication);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, SparseCodecs, testing::ValuesIn(kSpecs), codec_test_name);

// ---- threshold -----------------------------------------------------------------------

TEST(Threshold, SendsMagnitudesFromAlphaOn) {
  const auto codec = make_codec(parse_codec_spec("threshold:alpha=0.1"));
  // The float nearest to 0.1 is above it, so it is sent; the one before is not.
  const float alpha = 0.1f, below = std::nextafter(alpha, 0.0f);
  const std::vector<float> v = {alpha, -alpha, below, -below, 7.0f, 0.0f};
  std::vector<float> residual(6, 0.0f);
  EXPECT_EQ(decode(*codec, encode(*codec, v, residual.data()), 6),
            (std::vector<float>{alpha, -alpha, 0.0f, 0.0f, 7.0f, 0.0f}));
  EXPECT_EQ(residual, (std::vector<float>{0.0f, 0.0f, below, -below, 0.0f, 0.0f}));
  // The float nearest to 0.3 is above 0.3, that to 0.7 below 0.7 (which is not sent, then).
  const auto other = make_codec(parse_codec_spec("threshold:alpha=0.7"));
  const std::vector<float> w = {0.7f, std::nextafter(0.7f, 1.0f)};
  EXPECT_EQ(decode(*other, encode(*other, w), 2), (std::vector<float>{0.0f, w[1]}));
}

TEST(Threshold, AccumulatesUntilAlphaIsReached) {
  const auto codec = make_codec(parse_codec_spec("threshold:alpha=1"));
  const std::vector<float> g = {0.25f, -0.375f};
  std::vector<float> z(2, 0.0f), delivered(2, 0.0f);
  std::vector<std::size_t> lengths;
  for (int t = 0; t < 8; ++t) {
    const auto payload = encode(*codec, g, z.data());
    lengths.push_back(payload.size());
    codec->decode_add(payload, delivered);
  }
  EXPECT_EQ(delivered, (std::vector<float>{2.0f, -2.25f}));
  EXPECT_EQ(z, (std::vector<float>{0.0f, -0.75f}));
  EXPECT_EQ(lengths, (std::vector<std::size_t>{4, 4, 9, 9, 4, 9, 4, 9}));
}

TEST(Threshold, RefusesValuesBelowAlpha) {
  const auto codec = make_codec(parse_codec_spec("threshold:alpha=1"));
  auto payload = encode(*codec, std::vector<float>{1.0f});
  const float below = std::nextafter(1.0f, 0.0f);
  std::memcpy(payload.data() + 4, &below, 4);
  expect_throws(*codec, payload, 1);
}

TEST(Threshold, RoundsToBf16) {
  const auto codec = make_codec(parse_codec_spec("threshold:alpha=1e-45,value=bf16"));
  const auto of = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  // Down, a tie to even up and down, up, the largest; a denormal that rounds up to the least, and
  // one that is a tie and would be zero: it is not sent.
  const std::vector<float> v = {of(0x3F800001u),
                                of(0x3F818000u),
                                of(0x3F808000u),
                                of(0xBF808001u),
                                std::numeric_limits<float>::max(),
                                of(0x00008001u),
                                of(0x00008000u)};
  std::vector<float> residual(v.size(), 0.0f);
  const auto out = decode(*codec, encode(*codec, v, residual.data()), v.size());
  EXPECT_EQ(out, (std::vector<float>{1.0f, of(0x3F820000u), 1.0f, of(0xBF810000u), of(0x7F7F0000u),
                                     of(0x00010000u), 0.0f}));
  for (std::size_t i = 0; i < v.size(); ++i) EXPECT_EQ(residual[i], v[i] - out[i]);
}

// ---- randk ---------------------------------------------------------------------------

std::vector<std::size_t> places_of(const Codec& codec, std::size_t n,
                                   const EncodeContext& context) {
  const auto out =
      decode(codec, encode(codec, std::vector<float>(n, 1.0f), nullptr, nullptr, context), n);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < n; ++i) {
    if (out[i] != 0.0f) places.push_back(i);
  }
  return places;
}

TEST(RandK, DrawsKPlacesByWhereItIs) {
  const auto codec = make_codec(parse_codec_spec("randk:ratio=0.1"));
  for (const std::size_t n : {1, 9, 10, 11, 19, 1000, 4097}) {
    EXPECT_EQ(places_of(*codec, n, {}).size(), sparse::share_of(n, 0.1));
  }
  const EncodeContext here{.seed = 1, .step = 2, .bucket = 3, .rank = 4, .offset = 5};
  const auto places = places_of(*codec, 1000, here);
  for (const auto change :
       {+[](EncodeContext& p) { ++p.seed; }, +[](EncodeContext& p) { ++p.step; },
        +[](EncodeContext& p) { ++p.bucket; }, +[](EncodeContext& p) { ++p.offset; }}) {
    EncodeContext there = here;
    change(there);
    EXPECT_NE(places_of(*codec, 1000, there), places);
  }
  EncodeContext other_rank = here;
  other_rank.rank = 0;
  EXPECT_EQ(places_of(*codec, 1000, other_rank), places) << "so that the ranks' sums line up";
  const auto scaled = make_codec(parse_codec_spec("randk:ratio=0.1,scale=on"));
  EXPECT_NE(places_of(*scaled, 1000, other_rank), places_of(*scaled, 1000, here))
      << "else each rank of a ring would scale what others have scaled";
}

// Every place is drawn with probability k/n, whether k divides n or not: a chi-square test over the
// places (the draws are fixed, so it either holds or not).
TEST(RandK, EveryPlaceIsAsLikely) {
  const std::size_t n = 50, draws = 20'000;
  for (const char* spec : {"randk:ratio=0.1", "randk:ratio=0.06", "randk:ratio=0.7"}) {
    const auto codec = make_codec(parse_codec_spec(spec));
    const std::size_t k = sparse::share_of(n, codec->spec().number("ratio"));
    std::vector<double> times(n, 0.0);
    for (std::size_t step = 0; step < draws; ++step) {
      for (const std::size_t i : places_of(*codec, n, {.step = step})) ++times[i];
    }
    const double p = static_cast<double>(k) / static_cast<double>(n);
    const double mean = p * static_cast<double>(draws);
    double squares = 0.0;
    for (const double t : times) squares += (t - mean) * (t - mean) / (mean * (1.0 - p));
    // n - 1 degrees of freedom; 4 standard deviations.
    EXPECT_LT(squares, 49.0 + 4.0 * std::sqrt(2.0 * 49.0)) << spec;
  }
}

TEST(RandK, ScaledIsUnbiased) {
  const auto codec = make_codec(parse_codec_spec("randk:ratio=0.23,scale=on"));
  EXPECT_FALSE(codec->spec().feedback);
  const std::size_t n = 33, draws = 20'000, k = sparse::share_of(n, 0.23);
  const auto v = normals(n, 30);
  std::vector<double> mean(n, 0.0);
  for (std::size_t step = 0; step < draws; ++step) {
    const auto out = decode(*codec, encode(*codec, v, nullptr, nullptr, {.step = step}), n);
    for (std::size_t i = 0; i < n; ++i) mean[i] += out[i] / static_cast<double>(draws);
  }
  // A draw's variance is (n/k - 1) v^2.
  const double ratio = static_cast<double>(n) / static_cast<double>(k);
  for (std::size_t i = 0; i < n; ++i) {
    const double error = std::abs(v[i]) * std::sqrt((ratio - 1.0) / static_cast<double>(draws));
    EXPECT_NEAR(mean[i], v[i], 4.0 * error) << i;
  }
}

TEST(RandK, ContractsOverDraws) {
  const auto codec = make_codec(parse_codec_spec("randk:ratio=0.2"));
  const std::size_t n = 100, draws = 4000;
  const auto v = awkward(n, 31);
  double squares = 0.0, square_of_squares = 0.0;
  for (std::size_t step = 0; step < draws; ++step) {
    const auto out = decode(*codec, encode(*codec, v, nullptr, nullptr, {.step = step}), n);
    const double share = std::pow(relative_error(v, out), 2);
    EXPECT_LE(share, 1.0);
    squares += share / static_cast<double>(draws);
    square_of_squares += share * share / static_cast<double>(draws);
  }
  const double deviation = std::sqrt((square_of_squares - squares * squares) / draws);
  EXPECT_NEAR(squares, 0.8, 4.0 * deviation);
}

// To plan by: of values at random places within a hundredth, and fixed lengths exactly.
TEST(SparseCodec, TheExpectedLengthIsTheUsualOne) {
  const std::size_t n = 65536;
  for (const char* spec : {"topk:ratio=0.5", "topk:ratio=0.25", "topk:ratio=0.01", "topk:ratio=1",
                           "topk:ratio=0.05,value=bf16", "dgc:ratio=0.02", "randk:ratio=0.3"}) {
    const auto codec = make_codec(parse_codec_spec(spec));
    const auto sent = static_cast<double>(encode(*codec, normals(n, 15, 1.0)).size());
    EXPECT_NEAR(static_cast<double>(codec->expected_payload_bytes(n)), sent, 0.01 * sent) << spec;
  }
  const auto randk = make_codec(parse_codec_spec("randk:ratio=0.3"));
  EXPECT_EQ(randk->expected_payload_bytes(100), 8u + 30 * 4);
  // A threshold's values are anybody's guess: a twentieth of them.
  const auto threshold = make_codec(parse_codec_spec("threshold:alpha=2"));
  const auto topk = make_codec(parse_codec_spec("topk:ratio=0.05"));
  EXPECT_EQ(threshold->expected_payload_bytes(n), topk->expected_payload_bytes(n));
  EXPECT_EQ(topk->expected_payload_bytes(0), 4u);
}

TEST(RandK, BytesAreAsDocumented) {
  const auto codec = make_codec(parse_codec_spec("randk:ratio=0.5"));
  const std::vector<float> v = {1.0f, 2.0f, 3.0f};
  const auto payload = encode(*codec, v, nullptr, nullptr, {.seed = 9, .step = 8});
  ASSERT_EQ(payload.size(), 8u + 2 * 4);
  EXPECT_EQ(codec->fixed_payload_bytes(3), payload.size());
  const auto out = decode(*codec, payload, 3);
  float first = 0.0f, second = 0.0f;
  std::memcpy(&first, payload.data() + 8, 4);
  std::memcpy(&second, payload.data() + 12, 4);
  EXPECT_EQ(std::count(out.begin(), out.end(), first), 1);
  EXPECT_EQ(std::count(out.begin(), out.end(), second), 1);
  EXPECT_EQ(std::count(out.begin(), out.end(), 0.0f), 1);
  auto damaged = payload;
  damaged[11] = std::byte{0x7F}, damaged[10] = std::byte{0x80};  // an infinity
  expect_throws(*codec, damaged, 3);
}

TEST(RandK, ValuesThatScalingOverflowsAreNotFinite) {
  const auto codec = make_codec(parse_codec_spec("randk:ratio=0.1,scale=on"));
  std::vector<float> v(100, 1.0f);
  v[3] = 1e38f;
  bool finite = true;
  const auto payload = encode(*codec, v, nullptr, &finite);
  EXPECT_FALSE(finite);
  EXPECT_EQ(decode(*codec, payload, 100), std::vector<float>(100, 0.0f));
}

}  // namespace
}  // namespace dp
