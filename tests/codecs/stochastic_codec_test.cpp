// Codecs that round at random: the mean over draws is the value, the draws are a function of the
// place alone, and errors of sums average out.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/base/random.hpp"
#include "kernels/codecs/codec.hpp"
#include "kernels/codecs/draws.hpp"
#include "tests/codecs/gradients.hpp"

namespace dp {
namespace {

const char* const kSpecs[] = {"q16:round=stochastic", "q8:round=stochastic", "q4:round=stochastic",
                              "ternary:round=stochastic"};

std::vector<std::byte> encode(const Codec& codec, const std::vector<float>& v,
                              const EncodePlace& place) {
  std::vector<std::byte> payload(codec.max_payload_bytes(v.size()));
  EXPECT_TRUE(codec.encode(v, nullptr, payload, place).finite);
  return payload;
}

class StochasticCodec : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Codec> codec_ = make_codec(parse_codec_spec(GetParam()));
};

// The distance between two neighbouring levels of a block with that largest magnitude.
double gap_of(const CodecSpec& spec, double absmax) {
  const double levels = spec.name == "q16"  ? 32767
                        : spec.name == "q8" ? 127
                        : spec.name == "q4" ? 7
                                            : 1;
  return absmax / levels;
}

TEST_P(StochasticCodec, MeanOverDrawsIsTheValue) {
  // Fractions of a gap from 0 to 1, around zero and at both ends of the scale.
  const float absmax = 3.7f;
  const auto gap = static_cast<float>(gap_of(codec_->spec(), absmax));
  std::vector<float> v;
  for (int i = 0; i <= 40; ++i) {
    const float part = gap * static_cast<float>(i) / 40.0f;
    for (const float x : {part, -part, absmax - part, part - absmax}) v.push_back(x);
  }
  for (const float tiny : {1e-3f, 1e-6f}) {
    for (const float x : {tiny * gap, -tiny * gap, absmax - tiny * gap}) v.push_back(x);
  }
  constexpr int kDraws = 1000;
  std::vector<double> sum(v.size());
  std::vector<float> out(v.size());
  for (std::uint64_t step = 0; step < kDraws; ++step) {
    codec_->decode(encode(*codec_, v, {.seed = 5, .step = step}), out);
    for (std::size_t i = 0; i < v.size(); ++i) {
      ASSERT_LE(std::abs(out[i] - v[i]), gap * 1.0001f) << v[i];
      ASSERT_LE(std::abs(out[i]), absmax * 1.000001f);
      sum[i] += out[i];
    }
  }
  double error_sum = 0.0, variance_sum = 0.0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double x = std::abs(v[i]) / gap, part = x - std::floor(x);
    const double standard_error = gap * std::sqrt(part * (1.0 - part) / kDraws);
    const double error = sum[i] / kDraws - v[i];
    // The second term: of a rare event one is allowed to happen.
    EXPECT_LE(std::abs(error), 4.0 * standard_error + 1.5 * gap / kDraws) << v[i];
    error_sum += error;
    variance_sum += standard_error * standard_error;
  }
  EXPECT_LE(std::abs(error_sum), 4.0 * std::sqrt(variance_sum) + 1e-3 * gap);
}

// Zero and the largest magnitude are levels: no draw moves them.
TEST_P(StochasticCodec, LevelsStayWhatTheyAre) {
  for (const float absmax : {1.0f, 3.7f, 0x1.234p-90f, 0x1.fffffep125f}) {
    const std::vector<float> v = {absmax, 0.0f, -absmax, -0.0f};
    std::vector<float> out(v.size());
    for (std::uint64_t step = 0; step < 2000; ++step) {
      codec_->decode(encode(*codec_, v, {.step = step}), out);
      for (std::size_t i = 0; i < v.size(); ++i) ASSERT_NEAR(out[i] / absmax, v[i] / absmax, 1e-6);
    }
  }
}

TEST_P(StochasticCodec, PlaceDecidesTheBytes) {
  const auto v = test::heavy_tailed_gradient(5000, 1);
  const EncodePlace place{.seed = 1, .step = 2, .bucket = 3, .rank = 4, .offset = 8192};
  const auto payload = encode(*codec_, v, place);
  EXPECT_EQ(encode(*codec_, v, place), payload);
  std::vector<EncodePlace> others(5, place);
  others[0].seed = 2;
  others[1].step = 3;
  others[2].bucket = 4;
  others[3].rank = 3;
  others[4].offset = 10240;
  for (const EncodePlace& other : others) EXPECT_NE(encode(*codec_, v, other), payload);
}

// The errors of many ranks that send the same values average out.
TEST_P(StochasticCodec, ErrorsOfRanksAverageOut) {
  const auto v = test::heavy_tailed_gradient(20'000, 3);
  const auto error_of = [&](std::uint32_t ranks) {
    std::vector<float> sum(v.size());
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      codec_->decode_add(encode(*codec_, v, {.rank = rank}), sum);
    }
    double error = 0.0;
    for (std::size_t i = 0; i < v.size(); ++i) {
      error += std::pow(sum[i] / static_cast<double>(ranks) - static_cast<double>(v[i]), 2);
    }
    return std::sqrt(error);
  };
  // 1 / sqrt(64), with room for the spread of 20,000 values' errors.
  EXPECT_NEAR(error_of(64) / error_of(1), 0.125, 0.01);
}

std::string test_name(const testing::TestParamInfo<const char*>& info) {
  const std::string_view spec = info.param;
  return std::string(spec.substr(0, spec.find(':')));
}
INSTANTIATE_TEST_SUITE_P(Codecs, StochasticCodec, testing::ValuesIn(kSpecs), test_name);

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
