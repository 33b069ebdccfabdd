// Codecs that round at random: the mean over draws is the value, the draws are a function of the
// place alone, and errors of sums average out. Every unbiased form of a codec of the list is tried.
#include "kernels/codecs/draws.hpp"
#include "tests/codecs/codec_testing.hpp"
#include "tests/codecs/gradients.hpp"

namespace dp {
namespace {

using namespace test;

std::vector<std::string> unbiased_specs() {
  return codec_specs_where([](const Codec& codec) {
    return !codec.is_lossless() && !codec.spec().is_biased() && !codec.spec().feedback;
  });
}

class StochasticCodec : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Codec> codec_ = make_codec(parse_codec_spec(GetParam()));

  [[nodiscard]] Payload encode_at(std::span<const float> v, const EncodeContext& context) const {
    return encode(*codec_, v, nullptr, nullptr, context);
  }
  // Blocks have a scale with levels; other codecs choose values and send them enlarged.
  [[nodiscard]] bool has_levels() const { return codec_->block() > 1; }
};

TEST_P(StochasticCodec, MeanOverDrawsIsTheValue) {
  // All fractions of the distance between two levels, whatever that is; around zero, and at both
  // ends of the scale.
  const float absmax = 3.7f;
  std::vector<float> v = {absmax, -absmax, 0.0f};
  for (int i = 1; i <= 80; ++i) {
    for (const float part : {static_cast<float>(i) / 83.0f, std::ldexp(1.0f, -i / 4)}) {
      for (const float x : {absmax * part, absmax - absmax * part}) {
        v.push_back(x);
        v.push_back(-x);
      }
    }
  }
  constexpr int kDraws = 1000;
  const std::size_t n = v.size();
  std::vector<double> sum(n), sum_of_squares(n), least(n, 1e9), most(n, -1e9);
  std::vector<float> out(n);
  for (std::uint64_t step = 0; step < kDraws; ++step) {
    codec_->decode(encode_at(v, {.seed = 5, .step = step}), out);
    for (std::size_t i = 0; i < n; ++i) {
      const double error = static_cast<double>(out[i]) - static_cast<double>(v[i]);
      sum[i] += error;
      sum_of_squares[i] += error * error;
      least[i] = std::min<double>(least[i], out[i]);
      most[i] = std::max<double>(most[i], out[i]);
    }
  }
  // The distance of neighbouring levels, or the largest value sent enlarged.
  double gap = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    gap = std::max(gap, most[i] - least[i]);
    if (has_levels()) {
      ASSERT_LE(std::max(most[i], -least[i]), absmax * 1.000001);
    }
  }
  ASSERT_GT(gap, 0.0);
  double error_sum = 0.0, outwards_sum = 0.0, variance_sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double error = sum[i] / kDraws;
    const double variance = std::max(0.0, sum_of_squares[i] / kDraws - error * error) / kDraws;
    // The second term: what is rare may not have happened, with probability e^-8 where 8 times are
    // expected.
    EXPECT_LE(std::abs(error), 4.0 * std::sqrt(variance) + 8.0 * gap / kDraws) << v[i];
    if (has_levels()) {
      // No draw is further away than the next level.
      EXPECT_LE(most[i] - gap * 1.0001, v[i]);
      EXPECT_GE(least[i] + gap * 1.0001, v[i]);
    }
    error_sum += error;
    outwards_sum += std::copysign(1.0, static_cast<double>(v[i])) * error;
    variance_sum += variance;
  }
  // Over all values: neither up or down nor away from zero or towards it.
  for (const double sum_of_all : {error_sum, outwards_sum}) {
    EXPECT_LE(std::abs(sum_of_all), 4.0 * std::sqrt(variance_sum) + 1e-3 * gap);
  }
}

// Zero and the largest magnitude are levels: no draw moves them.
TEST_P(StochasticCodec, LevelsStayWhatTheyAre) {
  if (!has_levels()) GTEST_SKIP() << "has no levels";
  for (const float absmax : {1.0f, 3.7f, 0x1.234p-90f, 0x1.fffffep125f}) {
    const std::vector<float> v = {absmax, 0.0f, -absmax, -0.0f};
    std::vector<float> out(v.size());
    for (std::uint64_t step = 0; step < 2000; ++step) {
      codec_->decode(encode_at(v, {.step = step}), out);
      for (std::size_t i = 0; i < v.size(); ++i) ASSERT_NEAR(out[i] / absmax, v[i] / absmax, 1e-6);
    }
  }
}

TEST_P(StochasticCodec, PlaceDecidesTheBytes) {
  const auto v = heavy_tailed_gradient(5000, 1);
  const EncodeContext context{.seed = 1, .step = 2, .bucket = 3, .rank = 4, .offset = 8192};
  const auto payload = encode_at(v, context);
  EXPECT_EQ(encode_at(v, context), payload);
  std::vector<EncodeContext> others(5, context);
  others[0].seed = 2;
  others[1].step = 3;
  others[2].bucket = 4;
  others[3].rank = 3;
  others[4].offset = 10240;
  for (const EncodeContext& other : others) EXPECT_NE(encode_at(v, other), payload);
}

// The errors of many ranks that send the same values average out.
TEST_P(StochasticCodec, ErrorsOfRanksAverageOut) {
  constexpr std::uint32_t kRanks = 64;
  const std::size_t n = 20'000;
  // Codecs that choose values choose few: with heavy tails, the values of a few ranks say little.
  const auto v = has_levels() ? heavy_tailed_gradient(n, 3) : std::vector<float>(n, 1.0f);
  std::vector<float> sum(n);
  double of_each = 0.0;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    const auto out = decode(*codec_, encode_at(v, {.rank = rank}), n);
    of_each += squared_error(v, out) / kRanks;
    for (std::size_t i = 0; i < n; ++i) sum[i] += out[i];
  }
  for (float& x : sum) x /= kRanks;
  // 1 / sqrt(64), with room for the spread of 20,000 values' errors.
  EXPECT_NEAR(std::sqrt(squared_error(v, sum) / of_each), 0.125, 0.01);
}

INSTANTIATE_TEST_SUITE_P(Codecs, StochasticCodec, testing::ValuesIn(unbiased_specs()),
                         codec_test_name);

TEST(Draws, AreUniformAndDifferBetweenPlaces) {
  constexpr std::uint32_t kCount = 100'000;
  const Draws draws({.seed = 1}), others({.seed = 2});
  double sum = 0.0, product = 0.0, neighbours = 0.0;
  int histogram[16] = {};
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const double u = draws.uniform(i);
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u - 0.5;
    product += (u - 0.5) * (static_cast<double>(others.uniform(i)) - 0.5);
    neighbours += (u - 0.5) * (static_cast<double>(draws.uniform(i + 1)) - 0.5);
    ++histogram[static_cast<int>(16.0 * u)];
  }
  // 4 standard errors each: variance 1/12 of a draw, 1/144 of a product, 15/256 of a share.
  EXPECT_LE(std::abs(sum), 4.0 * std::sqrt(kCount / 12.0));
  EXPECT_LE(std::abs(product), 4.0 * std::sqrt(kCount / 144.0));
  EXPECT_LE(std::abs(neighbours), 4.0 * std::sqrt(kCount / 144.0));
  for (const int count : histogram) {
    EXPECT_NEAR(count, kCount / 16.0, 4.0 * std::sqrt(kCount * 15.0 / 256.0));
  }
}

// The mean of a draw is a half, exactly: 2^-24 and 1 - 2^-24 are its ends.
TEST(Draws, AreSymmetric) {
  const Draws draws({.seed = 3});
  for (std::uint32_t i = 0; i < 1'000'000; ++i) {
    const double u = draws.uniform(i);
    // Odd multiples of 2^-24.
    ASSERT_EQ(std::fmod(u * 0x1p24, 2.0), 1.0) << u;
  }
}

}  // namespace
}  // namespace dp
